//! Runtimes from templates that the API server reads: of the shape of kdoctor's chart, and the default.

use caretaker_runtimes::api::CarrierKind::{self, DaemonSet, Deployment};
use caretaker_runtimes::api::TaskKind::NetReach;
use caretaker_runtimes::subject::Policy;
use serde_json::{Value, json};

use crate::support::kdoctor::Place;

/// As kdoctor's chart has it: modes in octal, probes, no replicas, a selector and a name that are not ours.
const POD: &str = "
apiVersion: v1
kind: Pod
metadata:
  labels: {app.kubernetes.io/name: kdoctor-agent, app.kubernetes.io/component: kdoctor-agent}
spec:
  serviceAccountName: kdoctor-agent
  priorityClassName: system-node-critical
  hostNetwork: false
  dnsPolicy: ClusterFirst
  restartPolicy: Always
  tolerations: [{operator: Exists}]
  containers:
    - name: kdoctor-agent
      image: 'caretaker.test/busybox:1'
      command: [/usr/bin/agent]
      args: [--config-path=/tmp/config-map/conf.yml]
      ports: [{name: health, containerPort: 5710, protocol: TCP}, {name: http, containerPort: 80, protocol: TCP}]
      startupProbe: {httpGet: {path: /healthy/startup, port: 5710, scheme: HTTP}, failureThreshold: 60, periodSeconds: 2}
      livenessProbe: {httpGet: {path: /healthy/liveness, port: 5710, scheme: HTTP}, initialDelaySeconds: 60}
      readinessProbe: {httpGet: {path: /healthy/readiness, port: 5710, scheme: HTTP}, timeoutSeconds: 5}
      env: [{name: ENV_ENABLED_METRIC, value: 'false'}]
      volumeMounts: [{name: config-path, mountPath: /tmp/config-map, readOnly: true}, {name: tls, mountPath: /etc/tls}]
  volumes:
    - name: config-path
      configMap:
        defaultMode: 0400
        name: kdoctor
    - name: tls
      projected:
        defaultMode: 0400
        sources:
          - secret: {items: [{key: tls.key, path: ca.key}], name: kdoctor-ca}
";
const CARRIER_SPEC: &str = "selector: {matchLabels: {app.kubernetes.io/name: kdoctor-agent}}";
const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {namespace: elsewhere, labels: {app.kubernetes.io/name: kdoctor-agent}}
spec:
  type: LoadBalancer
  ports: [{name: http, port: 80, targetPort: http, protocol: TCP}]
  ipFamilyPolicy: SingleStack
  ipFamilies: [IPv4]
  selector: {app.kubernetes.io/name: kdoctor-agent}
";
const INGRESS: &str = "
apiVersion: networking.k8s.io/v1
kind: Ingress
spec:
  ingressClassName: nginx
  rules:
    - http: {paths: [{path: /, pathType: Exact, backend: {service: {name: kdoctor, port: {number: 80}}}}]}
";

async fn create_tasks(place: &Place) {
    for kind in CarrierKind::ALL {
        let spec = json!({ "agentSpec": { "kind": kind.name() }, "target": { "ingress": true } });
        place.create_task(NetReach, &kind.name().to_lowercase(), spec).await;
    }
}

/// The carriers, the Services and the Ingresses that were accepted.
async fn accepted(place: &Place, policy: Policy) -> Vec<[Value; 3]> {
    let (keeper, _clock) = place.start(policy);
    let mut all = Vec::new();
    for kind in CarrierKind::ALL {
        let task = kind.name().to_lowercase();
        place.until_status(NetReach, &task, "creating", &keeper).await;
        let (carrier, service) = (format!("kdoctor-netreach-{task}"), format!("kdoctor-netreach-{task}-ipv4"));
        let mut parts = Vec::new();
        for (kind, name) in [(kind.name(), &carrier), ("Service", &service), ("Ingress", &service)] {
            parts.push(place.get(kind, name).await.unwrap());
        }
        all.push(parts.try_into().unwrap());
    }
    keeper.stop().await;
    all
}

#[tokio::test]
async fn templates_of_the_shape_of_kdoctors_chart_become_runtimes() {
    let place = Place::new("chart").await;
    let carrier = |kind: CarrierKind, more: &str| {
        format!("apiVersion: apps/v1\nkind: {kind}\nmetadata: {{name: kdoctor-agent}}\nspec: {{{CARRIER_SPEC}{more}}}")
    };
    place
        .create_config_map(json!({
            "metadata": { "name": "kdoctor-app-config-template" },
            "data": {
                "daemonset.yml": carrier(DaemonSet, ", updateStrategy: {type: RollingUpdate}"),
                "deployment.yml": carrier(Deployment, ", replicas: 0"),
                "pod.yml": POD, "service.yml": SERVICE, "ingress.yml": INGRESS,
            },
        }))
        .await;
    create_tasks(&place).await;

    for [carrier, service, ingress] in accepted(&place, Policy { templates: None, ..place.policy() }).await {
        let pod = &carrier["spec"]["template"]["spec"];
        for (volume, kind) in ["configMap", "projected"].into_iter().enumerate() {
            assert_eq!(pod["volumes"][volume][kind]["defaultMode"], 0o400);
        }
        let name = &carrier["metadata"]["name"];
        assert_eq!(carrier["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"], *name);
        assert_eq!(service["spec"]["selector"], carrier["spec"]["selector"]["matchLabels"]);
        assert_eq!(service["spec"]["type"], "LoadBalancer");
        let path = &ingress["spec"]["rules"][0]["http"]["paths"][0];
        assert_eq!(path["backend"]["service"]["name"], service["metadata"]["name"]);
        if carrier["kind"] == "Deployment" {
            assert_eq!(carrier["spec"]["replicas"], 1, "the template of the chart has none");
        }
    }
}

#[tokio::test]
async fn the_default_template_becomes_a_runtime_as_it_is() {
    let place = Place::new("default-template").await;
    create_tasks(&place).await;

    for [carrier, service, _] in accepted(&place, Policy { templates: None, ..place.policy() }).await {
        let image = carrier["spec"]["template"]["spec"]["containers"][0]["image"].as_str().unwrap();
        assert!(image.contains("kdoctor-agent"), "{image}");
        assert_eq!(service["spec"]["type"], "ClusterIP");
    }
}
