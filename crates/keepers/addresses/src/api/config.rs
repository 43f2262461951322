//! Spiderpool's own settings: the ConfigMap `spiderpool-conf`, as far as they decide what may be released.

use serde::Deserialize;

/// The name of Spiderpool's ConfigMap. It is in the namespace that Spiderpool is installed in.
pub const CONFIG_MAP: &str = "spiderpool-conf";
/// The key in it that has the settings.
pub const CONFIG_KEY: &str = "conf.yml";

/// Whose pods get their previous addresses back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StaticIps {
    /// Those of StatefulSets: `enableStatefulSet`.
    pub stateful_sets: bool,
    /// Virtual machines of KubeVirt: `enableKubevirtStaticIP`.
    pub vms: bool,
}

impl Default for StaticIps {
    /// Where nothing is set, addresses are retained.
    fn default() -> Self {
        Self { stateful_sets: true, vms: true }
    }
}

/// What one ConfigMap says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigMapSettings {
    /// Whose pods get their previous addresses back.
    pub static_ips: StaticIps,
    /// True if `iaasNetworkProvider.serverUrl` is set.
    pub has_provider: bool,
    /// Why the settings cannot be read, if they cannot.
    pub invalid: Option<String>,
}

/// Spiderpool's settings, of all ConfigMaps of that name: what one of them retains is retained.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpiderpoolConfig {
    /// Whose pods get their previous addresses back.
    pub static_ips: StaticIps,
    /// The ConfigMap that names an IaaS provider, as `namespace/name`.
    pub provider: Option<String>,
    /// A ConfigMap that cannot be read, as `namespace/name`, and why.
    pub invalid: Option<(String, String)>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    enable_stateful_set: Option<bool>,
    #[serde(rename = "enableKubevirtStaticIP")]
    enable_kubevirt_static_ip: Option<bool>,
    iaas_network_provider: Option<Provider>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Provider {
    server_url: Option<String>,
}

impl ConfigMapSettings {
    /// Reads the text under [`CONFIG_KEY`].
    #[must_use]
    pub fn parse(text: Option<&str>) -> Self {
        let Some(text) = text else {
            let invalid = Some(format!("it has no key {CONFIG_KEY}"));
            return Self { invalid, ..Self::default() };
        };
        let written = match serde_saphyr::from_str::<Option<Written>>(text) {
            Ok(written) => written.unwrap_or_default(),
            Err(error) => {
                let why = error.to_string();
                let invalid = Some(format!("{CONFIG_KEY}: {}", why.lines().next().unwrap_or_default()));
                return Self { invalid, ..Self::default() };
            }
        };
        let url = written.iaas_network_provider.and_then(|provider| provider.server_url);
        Self {
            static_ips: StaticIps {
                stateful_sets: written.enable_stateful_set.unwrap_or(true),
                vms: written.enable_kubevirt_static_ip.unwrap_or(true),
            },
            has_provider: url.is_some_and(|url| !url.trim().is_empty()),
            invalid: None,
        }
    }
}

impl SpiderpoolConfig {
    /// The settings of all ConfigMaps, by namespace and name.
    pub fn of<'a>(all: impl IntoIterator<Item = (&'a str, &'a ConfigMapSettings)>) -> Self {
        let mut known: Option<StaticIps> = None;
        let mut config = Self::default();
        for (name, settings) in all {
            let StaticIps { stateful_sets, vms } = settings.static_ips;
            let before = known.unwrap_or(StaticIps { stateful_sets: false, vms: false });
            known = Some(StaticIps { stateful_sets: before.stateful_sets || stateful_sets, vms: before.vms || vms });
            if settings.has_provider {
                config.provider.get_or_insert_with(|| name.to_owned());
            }
            if let Some(why) = &settings.invalid {
                config.invalid.get_or_insert_with(|| (name.to_owned(), why.clone()));
            }
        }
        config.static_ips = known.unwrap_or_default();
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const CHART: &str = "
ipamUnixSocketPath: /var/run/spidernet/spiderpool.sock
enableIPv4: true
enableStatefulSet: true
enableKubevirtStaticIP: false
podResourceInject:
  enabled: false
  namespacesExclude: [\"kube-system\"]
iaasNetworkProvider:
  serverUrl: \"\"
  httpRequestTimeout: \"30s\"
";

    #[rstest]
    #[case::of_the_chart(CHART, true, false, false)]
    #[case::sets_off("enableStatefulSet: false", false, true, false)]
    #[case::nothing_set("enableIPv4: true", true, true, false)]
    #[case::empty("", true, true, false)]
    #[case::a_provider("iaasNetworkProvider: {serverUrl: https://iaas.example.com}", true, true, true)]
    #[case::no_provider("iaasNetworkProvider:", true, true, false)]
    fn settings_are_read(#[case] text: &str, #[case] sets: bool, #[case] vms: bool, #[case] has_provider: bool) {
        let static_ips = StaticIps { stateful_sets: sets, vms };

        assert_eq!(ConfigMapSettings::parse(Some(text)), ConfigMapSettings { static_ips, has_provider, invalid: None });
    }

    #[rstest]
    #[case::no_key(None)]
    #[case::no_yaml(Some("enableStatefulSet: ["))]
    #[case::no_bool(Some("enableStatefulSet: maybe"))]
    #[case::a_list(Some("[1]"))]
    fn what_cannot_be_read_retains_everything(#[case] text: Option<&str>) {
        let read = ConfigMapSettings::parse(text);

        assert!(read.invalid.is_some());
        assert_eq!(read.static_ips, StaticIps::default());
    }

    #[test]
    fn what_one_of_several_retains_is_retained() {
        let off = ConfigMapSettings::parse(Some("enableStatefulSet: false"));
        let on = ConfigMapSettings::parse(Some("enableKubevirtStaticIP: false"));
        let provider = ConfigMapSettings::parse(Some("iaasNetworkProvider: {serverUrl: x}"));

        assert!(!SpiderpoolConfig::of([("a/spiderpool-conf", &off)]).static_ips.stateful_sets);
        let both = SpiderpoolConfig::of([("a/spiderpool-conf", &off), ("b/spiderpool-conf", &on)]);
        assert_eq!(both.static_ips, StaticIps { stateful_sets: true, vms: true });
        let named = SpiderpoolConfig::of([("a/spiderpool-conf", &off), ("b/spiderpool-conf", &provider)]);
        assert_eq!(named.provider.as_deref(), Some("b/spiderpool-conf"));
        assert_eq!(SpiderpoolConfig::of([]), SpiderpoolConfig::default());
    }
}
