//! What a pod of a template requests, in the way that the scheduler counts it.

use std::fmt;

use caretaker_engine::object::null_as_default;
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use super::partial::WorkloadPodSpec;

/// What one pod requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PodRequests {
    /// CPU, in thousandths of a core.
    pub cpu_millis: u64,
    /// Memory, in bytes.
    pub memory_bytes: u64,
}

impl PodRequests {
    /// The requests of a number of such pods.
    #[must_use]
    pub fn times(self, pods: u64) -> Self {
        let of = |amount: u64| amount.saturating_mul(pods);
        Self { cpu_millis: of(self.cpu_millis), memory_bytes: of(self.memory_bytes) }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let cpu_millis = self.cpu_millis.saturating_add(other.cpu_millis);
        Self { cpu_millis, memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes) }
    }

    /// What a pod with this template requests. Containers run together, and with them the init containers that never
    /// end; the other init containers run before, one after the other. What the pod requests as a whole goes before that.
    #[must_use]
    pub fn of(pod: &WorkloadPodSpec) -> Self {
        let amount = |of: fn(&Amounts) -> Option<Amount>| {
            if let Some(Amount(whole)) = of(&pod.resources.requests).or(of(&pod.resources.limits)) {
                return whole;
            }
            let requested = |container: &ContainerResources| {
                let Resources { requests, limits } = &container.resources;
                // The API server requests what is the limit, where nothing else is requested.
                of(requests).or(of(limits)).map_or(0, |amount| amount.0)
            };
            let (mut beside, mut before) = (0_u64, 0_u64);
            for container in &pod.init_containers {
                if container.restart_policy == "Always" {
                    beside = beside.saturating_add(requested(container));
                } else {
                    before = before.max(beside.saturating_add(requested(container)));
                }
            }
            let running = pod.containers.iter().map(requested).fold(beside, u64::saturating_add);
            running.max(before).saturating_add(of(&pod.overhead).map_or(0, |amount| amount.0))
        };
        // Amounts are in thousandths, so that a part of a core is a whole number.
        Self { cpu_millis: amount(|all| all.cpu), memory_bytes: amount(|all| all.memory) / 1_000 }
    }
}

/// What a container says about resources.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ContainerResources {
    /// Its resources.
    #[serde(deserialize_with = "null_as_default")]
    pub resources: Resources,
    /// `Always` for an init container that runs beside the others.
    #[serde(deserialize_with = "null_as_default")]
    pub restart_policy: String,
}

/// Requests and limits.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct Resources {
    /// The requests.
    #[serde(deserialize_with = "null_as_default")]
    pub requests: Amounts,
    /// The limits.
    #[serde(deserialize_with = "null_as_default")]
    pub limits: Amounts,
}

/// An amount of each.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default)]
pub struct Amounts {
    /// CPU.
    pub cpu: Option<Amount>,
    /// Memory.
    pub memory: Option<Amount>,
}

/// A quantity, in thousandths of its unit. One that cannot be read is nothing: the API server accepts none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Amount(pub u64);

impl Amount {
    /// Reads `250m`, `1.5`, `128Mi`, `1e3`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        const SUFFIXES: [(&str, f64); 13] = [
            ("Ki", 1024.0),
            ("Mi", 1_048_576.0),
            ("Gi", 1_073_741_824.0),
            ("Ti", 1_099_511_627_776.0),
            ("Pi", 1_125_899_906_842_624.0),
            ("n", 1e-9),
            ("u", 1e-6),
            ("m", 1e-3),
            ("k", 1e3),
            ("M", 1e6),
            ("G", 1e9),
            ("T", 1e12),
            ("P", 1e15),
        ];
        let text = text.trim();
        let found = SUFFIXES.iter().find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)));
        let (number, factor) = found.unwrap_or((text, 1.0));
        Self::of(number.parse::<f64>().ok()? * factor)
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked before; more than it holds is capped"
    )]
    fn of(units: f64) -> Option<Self> {
        (units.is_finite() && units >= 0.0).then(|| Self((units * 1_000.0).round() as u64))
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AmountVisitor)
    }
}

struct AmountVisitor;

impl Visitor<'_> for AmountVisitor {
    type Value = Amount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity")
    }

    fn visit_str<E>(self, text: &str) -> Result<Amount, E> {
        Ok(Amount::parse(text).unwrap_or_default())
    }

    fn visit_u64<E>(self, units: u64) -> Result<Amount, E> {
        Ok(Amount(units.saturating_mul(1_000)))
    }

    fn visit_i64<E>(self, units: i64) -> Result<Amount, E> {
        Ok(Amount(u64::try_from(units).unwrap_or_default().saturating_mul(1_000)))
    }

    fn visit_f64<E>(self, units: f64) -> Result<Amount, E> {
        Ok(Amount::of(units).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn container(cpu: &str, memory: &str) -> Value {
        json!({ "name": "c", "resources": { "requests": { "cpu": cpu, "memory": memory } } })
    }

    #[rstest]
    #[case::two_containers(json!({ "containers": [container("250m", "64Mi"), container("1", "64Mi")] }), (1_250, 128 << 20))]
    #[case::a_limit_alone(
        json!({ "containers": [{ "resources": { "limits": { "cpu": 2, "memory": "1G" } } }] }), (2_000, 1_000_000_000)
    )]
    #[case::a_large_init_container(
        json!({ "containers": [container("100m", "32Mi")], "initContainers": [container("2", "16Mi")] }), (2_000, 32 << 20)
    )]
    #[case::a_sidecar_runs_beside_them(
        json!({
            "containers": [container("100m", "32Mi")],
            "initContainers": [
                { "restartPolicy": "Always", "resources": { "requests": { "cpu": "50m", "memory": "8Mi" } } },
                container("120m", "1Mi"),
            ],
        }),
        (170, 40 << 20)
    )]
    #[case::overhead(
        json!({ "containers": [container("1", "1Mi")], "overhead": { "cpu": "0.25", "memory": "1Mi" } }), (1_250, 2 << 20)
    )]
    #[case::the_pod_as_a_whole(
        json!({ "containers": [container("1", "1Mi")], "resources": { "requests": { "cpu": "3" } } }), (3_000, 1 << 20)
    )]
    #[case::nothing(json!({ "containers": [{ "name": "c" }], "initContainers": null }), (0, 0))]
    #[case::nonsense(json!({ "containers": [container("lots", "-1")] }), (0, 0))]
    fn a_pod_requests_what_the_scheduler_counts(#[case] spec: Value, #[case] expected: (u64, u64)) {
        let spec: WorkloadPodSpec = serde_json::from_value(spec).unwrap();

        let PodRequests { cpu_millis, memory_bytes } = PodRequests::of(&spec);
        assert_eq!((cpu_millis, memory_bytes), expected);
    }
}
