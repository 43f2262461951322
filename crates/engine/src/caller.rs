//! Who runs a command, and when: as the API server sees it, whatever the clock of this machine shows.

use caretaker_core::{SignedDuration, Timestamp, time};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::Client;
use kube::api::{PostParams, Request};

use crate::projection::send_with_server_time;

/// The user of a client, as the API server knows it, and the time of the API server. The user is empty if the API server
/// does not say; the time is `now`, the time of this machine, if the API server does not say.
pub async fn current_user_and_time(client: &Client, now: fn() -> Timestamp) -> (String, Timestamp) {
    let review = serde_json::to_vec(&SelfSubjectReview::default()).unwrap_or_default();
    let request = Request::new("/apis/authentication.k8s.io/v1/selfsubjectreviews");
    let Ok(request) = request.create(&PostParams::default(), review) else { return (String::new(), now()) };
    let Ok((_, body, date)) = send_with_server_time(client, request).await else { return (String::new(), now()) };
    let review = serde_json::from_slice::<SelfSubjectReview>(&body);
    let user = review.ok().and_then(|review| review.status?.user_info?.username);
    (user.unwrap_or_default(), server_time(date, now()))
}

/// The time of the API server, whose answers have it to the second: this machine's time, where both agree.
fn server_time(date: Option<Timestamp>, now: Timestamp) -> Timestamp {
    const REST_OF_THE_SECOND: SignedDuration = SignedDuration::from_millis(999);
    date.map_or(now, |date| now.clamp(date, time::saturating_add(date, REST_OF_THE_SECOND)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[rstest]
    #[case::both_agree("2026-03-02T12:00:00.4Z", "2026-03-02T12:00:00.4Z")]
    #[case::this_machine_is_ahead("2026-03-02T13:00:00.4Z", "2026-03-02T12:00:00.999Z")]
    #[case::this_machine_is_behind("2026-03-01T12:00:00.4Z", "2026-03-02T12:00:00Z")]
    fn the_time_of_the_api_server_counts(#[case] here: &str, #[case] expected: &str) {
        assert_eq!(server_time(Some(at("2026-03-02T12:00:00Z")), at(here)), at(expected));
        assert_eq!(server_time(None, at(here)), at(here));
    }
}
