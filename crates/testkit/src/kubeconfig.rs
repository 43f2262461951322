//! Kubeconfig files.

use serde_json::{Value, json};

use crate::pki::Identity;

/// How a client authenticates.
#[derive(Debug, Clone)]
pub(crate) enum Credentials {
    Certificate(Identity),
    Token(String),
}

/// Returns a kubeconfig with one cluster, one user and one context. It is JSON, which is valid YAML.
pub(crate) fn content(url: &str, authority: &str, credentials: &Credentials) -> Value {
    let user = match credentials {
        Credentials::Certificate(id) => json!({
            "client-certificate-data": base64(id.certificate.as_bytes()),
            "client-key-data": base64(id.key.as_bytes()),
        }),
        Credentials::Token(token) => json!({ "token": token }),
    };
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "testkit", "cluster": { "server": url, "certificate-authority-data": base64(authority.as_bytes()) } }],
        "users": [{ "name": "me", "user": user }],
        "contexts": [{ "name": "testkit", "context": { "cluster": "testkit", "user": "me" } }],
        "current-context": "testkit",
    })
}

fn base64(bytes: &[u8]) -> Value {
    // `ByteString` serializes to base64.
    serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).expect("base64 is a string")
}
