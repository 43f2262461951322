//! The processes of a control plane, and their flags.

use std::path::Path;
use std::time::Duration;

use kube::Client;

use super::{Cluster, ClusterBuilder};
use crate::assets::Program;
use crate::wait::until;
use crate::{Error, Result, pki};

/// Limit for the start of the API server, which takes 3 to 4 s; with twenty processes for each core it has taken over 40 s.
const READY_LIMIT: Duration = Duration::from_mins(2);

const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
rules:
- level: Metadata
";

impl Cluster {
    fn etcd_url(&self) -> String {
        format!("unix://{}", self.folder.join("etcd.sock").display())
    }

    pub(super) fn start_etcd(&self) -> Result<()> {
        // Sockets in the cluster's folder need no port. etcd requires a host and port as its own peer
        // URL; no process connects to it.
        let peer = "http://localhost:2380";
        let args = [
            "--name=default".to_owned(),
            format!("--data-dir={}", self.folder.join("etcd").display()),
            format!("--listen-client-urls={}", self.etcd_url()),
            "--advertise-client-urls=http://localhost:2379".to_owned(),
            format!("--listen-peer-urls=unix://{}", self.folder.join("peer.sock").display()),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--unsafe-no-fsync=true".to_owned(),
            "--log-level=warn".to_owned(),
        ];
        self.spawn("etcd", &self.program(Program::Etcd)?, &args)
    }

    pub(super) fn start_api_server(&self, builder: &ClusterBuilder) -> Result<()> {
        let folder = &self.folder;
        let ca = pki::write(folder, "ca.crt", &self.authority.pem())?;
        let (server_crt, server_key) = self
            .authority
            .server(&[
                "127.0.0.1",
                "localhost",
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "10.96.0.1",
            ])?
            .write(folder, "apiserver")?;
        let (kubelet_crt, kubelet_key) =
            self.identity("kube-apiserver-kubelet-client", "system:masters")?.write(folder, "kubelet-client")?;
        let (private, public) = pki::signing_key()?;
        let sa_key = pki::write(folder, "sa.key", &private)?;
        let sa_pub = pki::write(folder, "sa.pub", &public)?;
        let policy = pki::write(folder, "audit-policy.yaml", AUDIT_POLICY)?;
        self.write_kubeconfig("admin.kubeconfig", &self.admin)?;

        let mut args = vec![
            format!("--etcd-servers={}", self.etcd_url()),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.port.number),
            "--permit-port-sharing=true".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            format!("--cert-dir={}", folder.join("certs").display()),
            format!("--client-ca-file={}", ca.display()),
            format!("--tls-cert-file={}", server_crt.display()),
            format!("--tls-private-key-file={}", server_key.display()),
            format!("--kubelet-client-certificate={}", kubelet_crt.display()),
            format!("--kubelet-client-key={}", kubelet_key.display()),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-signing-key-file={}", sa_key.display()),
            format!("--service-account-key-file={}", sa_pub.display()),
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-log-path={}", folder.join("audit.log").display()),
            // A call is in the log before it is answered, so that a test can count without waiting.
            "--audit-log-mode=blocking".to_owned(),
            // Never rotated, so that a count covers all calls since the start.
            "--audit-log-maxsize=0".to_owned(),
        ];
        if !builder.controllers {
            // Without controllers no namespace gets its default ServiceAccount, and this plugin would refuse
            // every pod.
            args.push("--disable-admission-plugins=ServiceAccount".to_owned());
        }
        args.extend(builder.flags.iter().cloned());
        self.spawn("kube-apiserver", &self.program(Program::ApiServer)?, &args)
    }

    pub(super) fn start_controllers(&self, builder: &ClusterBuilder) -> Result<()> {
        let common = |kubeconfig: &Path| {
            let kubeconfig = kubeconfig.display();
            vec![
                format!("--kubeconfig={kubeconfig}"),
                format!("--authentication-kubeconfig={kubeconfig}"),
                format!("--authorization-kubeconfig={kubeconfig}"),
                "--secure-port=0".to_owned(),
                "--leader-elect=false".to_owned(),
            ]
        };
        for (on, program, user) in [
            (builder.controllers, Program::ControllerManager, "system:kube-controller-manager"),
            (builder.scheduler, Program::Scheduler, "system:kube-scheduler"),
        ] {
            if !on {
                continue;
            }
            let kubeconfig = self.user_kubeconfig(user, None)?;
            let mut args = common(&kubeconfig);
            if program == Program::ControllerManager {
                args.push("--use-service-account-credentials=true".to_owned());
                args.push(format!("--service-account-private-key-file={}", self.folder.join("sa.key").display()));
                args.push(format!("--root-ca-file={}", self.folder.join("ca.crt").display()));
            }
            self.spawn(program.name(), &self.program(program)?, &args)?;
        }
        Ok(())
    }

    pub(super) async fn await_ready(&self) -> Result<()> {
        self.await_ready_at(&self.url).await
    }

    pub(super) async fn await_ready_at(&self, url: &str) -> Result<()> {
        let mut config = self.admin_config().await?;
        config.cluster_url = url.parse().expect("a valid URL");
        let client = Client::try_from(config).map_err(Error::api("creating a client of the administrator"))?;
        until("the API server to be ready", READY_LIMIT, async || {
            self.check_processes()?;
            let request = http::Request::get("/readyz").body(Vec::new()).expect("a valid request");
            match client.request_text(request).await {
                Ok(_) => Ok(Ok(())),
                Err(e) => Ok(Err(e.to_string())),
            }
        })
        .await
    }
}
