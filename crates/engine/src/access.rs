//! Whether we may do what we are about to need, asked before anything is begun.

use std::fmt;
use std::time::Duration;

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::health::Health;

/// A right that a keeper needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Need {
    /// `list`, `patch` and so on.
    pub verb: &'static str,
    /// The API group, empty for the core's.
    pub group: &'static str,
    /// The plural name.
    pub resource: &'static str,
    /// Only in this namespace.
    pub namespace: Option<&'static str>,
    /// Only this object.
    pub name: Option<&'static str>,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        self.namespace.map_or(Ok(()), |namespace| write!(f, " in {namespace}"))
    }
}

impl Need {
    /// Everywhere.
    #[must_use]
    pub const fn to(verb: &'static str, group: &'static str, resource: &'static str) -> Self {
        Self { verb, group, resource, namespace: None, name: None }
    }

    /// In one namespace.
    #[must_use]
    pub const fn within(mut self, namespace: &'static str) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// Only one object.
    #[must_use]
    pub const fn named(mut self, name: &'static str) -> Self {
        self.name = Some(name);
        self
    }
}

/// How often it is asked whether a missing right was given.
const AGAIN: Duration = Duration::from_secs(5);

/// Keeps a part of the health up to date with what is allowed: until nothing is missing, and again
/// each time somebody doubts it.
pub async fn check(client: Client, needs: Vec<Need>, health: Health, part: &str) {
    health.awaits(part);
    loop {
        match missing(&client, &needs).await {
            Ok(missing) if missing.is_empty() => {
                health.fine(part);
                health.doubted().await;
                continue;
            }
            Ok(missing) => {
                let all: Vec<String> = missing.iter().map(ToString::to_string).collect();
                health.waits(part, format!("not allowed: {}", all.join(", ")));
            }
            Err(e) => health.waits(part, crate::told(&e)),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Questions under way at once.
const AT_ONCE: usize = 4;

/// Which of these rights are missing.
pub async fn missing(client: &Client, needs: &[Need]) -> Result<Vec<Need>, kube::Error> {
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let ask = async |need: Need| {
        let text = |text: &str| Some(text.to_owned());
        let attributes = ResourceAttributes {
            verb: text(need.verb),
            group: text(need.group),
            resource: text(need.resource),
            namespace: need.namespace.and_then(text),
            name: need.name.and_then(text),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..Default::default() };
        let answer = reviews.create(&PostParams::default(), &review).await?;
        Ok::<_, kube::Error>(answer.status.is_none_or(|s| !s.allowed).then_some(need))
    };
    let answers: Vec<Option<Need>> =
        futures::stream::iter(needs.iter().copied()).map(ask).buffered(AT_ONCE).try_collect().await?;
    Ok(answers.into_iter().flatten().collect())
}
