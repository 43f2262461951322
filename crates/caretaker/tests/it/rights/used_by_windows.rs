//! The windows keeper with exactly its rights uses each of them.

use caretaker_engine::permissions::required;
use caretaker_engine::sources::Sources;
use caretaker_testkit::Cluster;
use caretaker_windows::Windows;

use super::shipped::{NAMESPACE, WINDOWS, is_repeated_event};
use crate::support::foreign_kinds::{create, serve_flux, suspended_flux_objects};
use crate::support::operator::start_operator;
use crate::support::role_rights::{Right, right};

/// The rights on kinds that are found at run time depend on what is served: here it is everything.
#[tokio::test]
async fn the_roles_of_windows_grant_what_flux_needs_and_with_exactly_these_rights_objects_are_suspended() {
    let (cluster, client) = WINDOWS.installed(Cluster::builder()).await;
    serve_flux(&cluster);
    let keeper = Windows::default();
    let sources = Sources::of(&keeper);
    sources.list_all(&client, 4).await.unwrap();

    let (everywhere, own) = WINDOWS.allowed(&client).await;
    let all = required(&keeper, &sources, false).into_iter().map(|required| required.right);
    let (local, global): (Vec<_>, Vec<_>) = all.partition(|right| right.namespace.as_deref() == Some(NAMESPACE));
    assert_eq!(everywhere, global.iter().map(right).collect());
    assert_eq!(own, local.iter().map(right).collect());

    create(&cluster, &suspended_flux_objects());
    let kubeconfig = cluster.account_kubeconfig(NAMESPACE, WINDOWS.account).await.unwrap();
    let operator = start_operator(&kubeconfig, &["--keepers", "windows"]).await;
    operator.ready().await;
    operator.tells("apps", "InsideWindow suspend done").await;
    operator.tells("apps", "StateNotShown show done").await;

    // An object is read again only if Flux writes it in between: real_flux.rs of the keeper has that.
    let after_a_conflict = |(group, _, verb, _): &Right| group.contains("fluxcd") && verb == "get";
    WINDOWS.uses_every_right(&cluster, &client, |right| after_a_conflict(right) || is_repeated_event(right)).await;
}
