//! kdoctor's own settings: the ConfigMap `kdoctor`, key `conf.yml`.

use caretaker_core::SignedDuration;
use serde::Deserialize;
use serde_json::Value;

/// What Caretaker reads of kdoctor's settings. What is not set is left to Caretaker's own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KdoctorSettings {
    /// Whether runtimes get a Service for IPv4.
    pub enable_ipv4: Option<bool>,
    /// Whether runtimes get a Service for IPv6.
    pub enable_ipv6: Option<bool>,
    /// How long a runtime stays if its task does not say.
    pub default_grace: Option<SignedDuration>,
    /// The label by which kdoctor finds the pods of a runtime.
    pub name_label: Option<String>,
}

#[derive(Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[derive(Default)]
struct Raw {
    #[serde(rename = "enableIPv4")]
    enable_ipv4: Value,
    #[serde(rename = "enableIPv6")]
    enable_ipv6: Value,
    agent_default_termination_grace_period_minutes: Value,
    unique_match_label_key: Value,
}

impl KdoctorSettings {
    /// Reads `conf.yml`. A value that cannot be read counts as not set: kdoctor itself would not start with it.
    #[must_use]
    pub fn read(text: &str) -> Self {
        let raw: Raw = serde_saphyr::from_str(text).unwrap_or_default();
        let minutes = raw.agent_default_termination_grace_period_minutes.as_i64().filter(|minutes| *minutes >= 0);
        Self {
            enable_ipv4: raw.enable_ipv4.as_bool(),
            enable_ipv6: raw.enable_ipv6.as_bool(),
            default_grace: minutes.map(|minutes| SignedDuration::from_mins(minutes.min(i64::from(i32::MAX)))),
            name_label: raw.unique_match_label_key.as_str().filter(|key| !key.is_empty()).map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kdoctor_is_told_counts_here_too() {
        let text = "enableIPv4: true\nenableIPv6: false\nhttpPort: 80\nagentDefaultTerminationGracePeriodMinutes: 30\nuniqueMatchLabelKey: app.kubernetes.io/name\n";

        let read = KdoctorSettings::read(text);

        let expected = KdoctorSettings {
            enable_ipv4: Some(true),
            enable_ipv6: Some(false),
            default_grace: Some(SignedDuration::from_mins(30)),
            name_label: Some("app.kubernetes.io/name".to_owned()),
        };
        assert_eq!(read, expected);
        assert_eq!(KdoctorSettings::read("{"), KdoctorSettings::default());
        assert_eq!(KdoctorSettings::read("agentDefaultTerminationGracePeriodMinutes: -1"), KdoctorSettings::default());
    }
}
