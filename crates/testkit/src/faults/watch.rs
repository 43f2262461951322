//! The response body of a watch that drops or delays events.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame};
use tower::BoxError;

use super::layer::AnyBody;
use super::{Faults, WatchFault};

type Release = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body of a watch, split into lines. Each line is an event and passes, is held back or is dropped.
/// Bookmarks always pass, because they carry no object and the server decides when to send them.
pub(super) struct FaultyWatch {
    inner: AnyBody,
    faults: Faults,
    /// The start of a line whose end has not arrived yet.
    partial: Vec<u8>,
    lines: VecDeque<Bytes>,
    /// A delayed event, and the future that completes when it is released.
    held: Option<(Bytes, Release)>,
    ended: bool,
}

impl FaultyWatch {
    pub(super) fn new(inner: AnyBody, faults: Faults) -> Self {
        Self { inner, faults, partial: Vec::new(), lines: VecDeque::new(), held: None, ended: false }
    }

    /// Splits data into lines, and keeps an incomplete last line.
    fn push(&mut self, data: &[u8]) {
        for part in data.split_inclusive(|b| *b == b'\n') {
            self.partial.extend_from_slice(part);
            if part.ends_with(b"\n") {
                self.lines.push_back(Bytes::from(std::mem::take(&mut self.partial)));
            }
        }
    }
}

/// What of an event decides over it.
#[derive(serde::Deserialize)]
struct Event {
    #[serde(rename = "type")]
    change: String,
    object: Object,
}

#[derive(serde::Deserialize)]
struct Object {
    kind: Option<String>,
}

impl Body for FaultyWatch {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        loop {
            if let Some((line, release)) = &mut this.held {
                ready!(release.as_mut().poll(cx));
                let line = std::mem::take(line);
                this.held = None;
                return Poll::Ready(Some(Ok(Frame::data(line))));
            }
            if let Some(line) = this.lines.pop_front() {
                let event = serde_json::from_slice::<Event>(&line).ok();
                if event.as_ref().is_some_and(|event| event.change == "BOOKMARK") {
                    return Poll::Ready(Some(Ok(Frame::data(line))));
                }
                match this.faults.next_event(event.as_ref().and_then(|event| event.object.kind.as_deref())) {
                    None => return Poll::Ready(Some(Ok(Frame::data(line)))),
                    Some(WatchFault::Drop) => continue,
                    Some(WatchFault::Delay) => {
                        let faults = this.faults.clone();
                        this.held = Some((line, Box::pin(async move { faults.released().await })));
                        continue;
                    }
                }
            }
            if this.ended {
                return Poll::Ready(None);
            }
            match ready!(Pin::new(&mut this.inner).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        this.push(&data);
                    }
                }
                Some(Err(e)) => return Poll::Ready(Some(Err(e))),
                None => {
                    this.ended = true;
                    let rest = std::mem::take(&mut this.partial);
                    if !rest.is_empty() {
                        this.lines.push_back(Bytes::from(rest));
                    }
                }
            }
        }
    }
}
