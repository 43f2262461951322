//! A keeper that is off although the cluster has what it works on.

use kube::core::ApiResource;

use super::DynKeeper;

/// How many kinds a note names.
const NAMED: usize = 3;

/// For people: what is there, and how to see what the keeper would do. `None` if the cluster serves nothing that it
/// works on.
pub(super) fn note(keeper: &dyn DynKeeper, served: &[ApiResource]) -> Option<String> {
    let is_served =
        |kind: &str| served.iter().any(|served| served.kind == kind && keeper.reads_kind(&served.api_version, kind));
    let kinds: Vec<String> = keeper.kinds().into_iter().map(|kind| kind.name).filter(|kind| is_served(kind)).collect();
    let more = match kinds.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!(" and {more} more kinds"),
    };
    let (name, named) = (keeper.name(), kinds[..kinds.len().min(NAMED)].join(", "));
    (!kinds.is_empty()).then(|| {
        format!(
            "the keeper {name} is off, although the cluster has {named}{more}: --keepers {name} shows what it would \
             do, and keepers.{name}.enabled in the settings switches it on"
        )
    })
}

#[cfg(test)]
mod tests {
    use kube::core::GroupVersionKind;
    use rstest::rstest;

    use crate::config::Config;
    use crate::keepers::off_although_served;

    use super::*;

    fn served(kinds: &[(&str, &str)]) -> Vec<ApiResource> {
        kinds.iter().map(|(group, kind)| ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v2", kind))).collect()
    }

    fn notes(settings: &str, served: &[ApiResource]) -> Vec<String> {
        let config = Config::parse(settings, "x").unwrap();
        off_although_served(&config, served)
    }

    #[rstest]
    #[case::nothing_is_installed("", &[("", "Namespace"), ("apps", "Deployment")], &[])]
    #[case::pools("", &[("spiderpool.spidernet.io", "SpiderIPPool")], &["addresses"])]
    #[case::pools_of_somebody_else("", &[("example.org", "SpiderIPPool")], &[])]
    #[case::it_is_on("keepers: {addresses: {enabled: true}}", &[("spiderpool.spidernet.io", "SpiderIPPool")], &[])]
    #[case::switched_off("keepers: {addresses: {enabled: false}}", &[("spiderpool.spidernet.io", "SpiderIPPool")], &["addresses"])]
    #[case::several("", &[("kdoctor.io", "NetReach"), ("kustomize.toolkit.fluxcd.io", "Kustomization")], &["windows", "runtimes"])]
    #[case::the_one_that_is_on_by_default("keepers: {namespaces: {enabled: false}}", &[("", "Namespace")], &["namespaces"])]
    fn a_keeper_is_named_if_it_is_off_and_what_it_works_on_is_there(
        #[case] settings: &str,
        #[case] kinds: &[(&str, &str)],
        #[case] expected: &[&str],
    ) {
        let notes = notes(settings, &served(kinds));

        assert_eq!(notes.len(), expected.len(), "{notes:?}");
        for (note, keeper) in notes.iter().zip(expected) {
            assert!(note.starts_with(&format!("the keeper {keeper} is off")), "{note}");
            assert!(note.contains(&format!("--keepers {keeper}")), "{note}");
        }
    }

    #[test]
    fn a_note_names_few_kinds_and_counts_the_others() {
        let flux = ["Kustomization", "HelmRelease", "GitRepository", "Bucket", "HelmChart"];
        let groups =
            ["kustomize", "helm", "source", "source", "source"].map(|group| format!("{group}.toolkit.fluxcd.io"));
        let kinds: Vec<(&str, &str)> = groups.iter().map(String::as_str).zip(flux).collect();

        let notes = notes("", &served(&kinds));

        assert!(notes[0].contains(" and 2 more kinds: "), "{notes:?}");
    }
}
