//! Traces: what a collector of OpenTelemetry receives, and what happens without one that can be used.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::support::operator::{TIMEOUT, cluster, create_namespace, wait_for_state};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use caretaker_test_programs::operator::Operator;
use caretaker_testkit::{Cluster, until};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

/// A span with the name of its service.
#[derive(Debug, Clone)]
struct Received {
    service: String,
    span: Span,
}

impl Received {
    fn attribute(&self, key: &str) -> String {
        text(&self.span.attributes, key)
    }
}

fn text(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|attribute| attribute.value.clone()) {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => text,
        Some(AnyValue { value: Some(Value::IntValue(number)) }) => number.to_string(),
        _ => String::new(),
    }
}

type Spans = Arc<Mutex<Vec<Received>>>;

/// A collector that remembers every span; returns its address.
async fn collector() -> (String, Spans) {
    let spans = Spans::default();
    let receive = async |State(spans): State<Spans>, body: Bytes| {
        let request = ExportTraceServiceRequest::decode(body).unwrap();
        for resource in request.resource_spans {
            let service = text(&resource.resource.unwrap_or_default().attributes, "service.name");
            let received = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            let received = received.map(|span| Received { service: service.clone(), span });
            spans.lock().unwrap().extend(received);
        }
    };
    let router = Router::new().route("/v1/traces", post(receive)).with_state(spans.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, spans)
}

async fn start(cluster: &Cluster, endpoint: &str) -> Operator {
    let program = Path::new(env!("CARGO_BIN_EXE_caretaker"));
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint), ("OTEL_BSP_SCHEDULE_DELAY", "100")];
    let args = ["--keepers=namespaces"];
    Operator::start_with(program, &cluster.kubeconfig(), &args, &variables).await.unwrap()
}

#[tokio::test]
async fn a_collector_receives_a_span_for_every_action_with_its_calls_below_it() {
    let (cluster, client) = cluster().await;
    let (endpoint, spans) = collector().await;
    create_namespace(&client, "shop", 2).await;

    let operator = start(&cluster, &endpoint).await;
    wait_for_state(&client, "shop", "sleep", 0).await;

    let is_sleep = |received: &Received| received.span.name == "namespaces sleep";
    let sleep = until("the span of the sleep", TIMEOUT, async || {
        let spans = spans.lock().unwrap();
        Ok(spans.iter().find(|received| is_sleep(received)).cloned().ok_or_else(|| format!("{spans:?}")))
    })
    .await
    .unwrap();
    assert_eq!(sleep.service, "caretaker");
    let attributes = ["keeper", "action", "object", "rule", "actions", "outcome"].map(|key| sleep.attribute(key));
    assert_eq!(attributes, ["namespaces", "sleep", "shop", "SleepAfterElapsed", "1", "done"]);

    // The Namespace, its Deployment, and the Namespace again.
    let spans = spans.lock().unwrap();
    let below = spans.iter().filter(|received| received.span.parent_span_id == sleep.span.span_id);
    let methods: Vec<String> = below.map(|received| received.attribute("http.method")).collect();
    assert_eq!(methods.iter().filter(|method| *method == "PATCH").count(), 3, "{methods:?}");
    assert!(operator.log().contains(&format!("traces are sent to {endpoint}")), "{}", operator.log());
}

#[tokio::test]
async fn a_collector_that_does_not_answer_or_cannot_be_used_stops_nothing() {
    let (cluster, client) = cluster().await;
    // Nobody listens on this port: it was free a moment ago.
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    create_namespace(&client, "shop", 2).await;
    let operator = start(&cluster, &format!("http://{free}")).await;
    wait_for_state(&client, "shop", "sleep", 0).await;
    drop(operator);

    create_namespace(&client, "office", 1).await;
    let operator = start(&cluster, "https://collector.example:4318").await;
    wait_for_state(&client, "office", "sleep", 0).await;

    let log = operator.log();
    let line = log.lines().find(|line| line.contains("no traces")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("OTEL_EXPORTER_OTLP_ENDPOINT=https://") && line.contains("use http://HOST:4318"), "{line}");
}
