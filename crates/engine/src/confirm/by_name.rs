//! Live reads of many objects by their names: one by one, or by a list where that takes fewer calls.

use std::collections::BTreeSet;

use caretaker_core::{SourceId, Timestamp};
use futures::StreamExt;
use kube::Client;

use super::{LiveView, Names, ReadError, Unreadable};
use crate::cache::Cache;
use crate::controller::Controller;
use crate::projection::{PageOf, is_not_served};
use crate::source::{Change, ObjectId, Observed};
use crate::sources::Reading;

/// Up to this many objects of a namespace are read one by one; for more the first page of a list is
/// tried, which in most namespaces is all of it.
const ONE_BY_ONE: usize = 5;
/// A further page is worth it for this many.
const NAMES_PER_PAGE: usize = 20;
/// Reads under way at once.
const CONCURRENT_READS: usize = 4;

impl<K: Controller> LiveView<'_, K> {
    /// Reads objects of a kind by their names in each namespace: those of which many are wanted are listed,
    /// as far as that is worth its pages, and what is left is read one by one. `strict`: that the kind is
    /// not served is an error, although the source is optional. Returns what could not be read.
    pub async fn get_many(&mut self, source: SourceId, all: &Names<'_>, strict: bool) -> Vec<Unreadable> {
        let Some(reading) = self.sources.reading_source(source) else { return Vec::new() };
        let may_be_absent = reading.optional && !strict;
        let mut unreadable = Vec::new();
        let (many, few): (Vec<_>, Vec<_>) = all.iter().partition(|(_, names)| names.len() > ONE_BY_ONE);
        let mut left: Vec<(&str, &str)> =
            few.iter().flat_map(|(namespace, names)| names.iter().map(|name| (**namespace, *name))).collect();
        let lists = many.iter().map(|(namespace, names)| list_names(&self.client, &reading, namespace, names));
        let mut lists = futures::stream::iter(lists.collect::<Vec<_>>()).buffer_unordered(CONCURRENT_READS);
        while let Some((namespace, ListedNames { changes, missing, error, date })) = lists.next().await {
            self.server_time = self.server_time.max(date);
            for change in changes {
                self.extract.update(&reading.source, change);
            }
            match error {
                Some(error) if may_be_absent && is_not_served(&error) => {}
                Some(error) => {
                    let error = ReadError::from_api(reading.path(in_namespace(namespace)), &error);
                    unreadable.push(Unreadable { namespace: namespace.to_owned(), name: None, error });
                }
                None => left.extend(missing.into_iter().map(|name| (namespace, name))),
            }
        }
        drop(lists);
        let mut rest = Names::new();
        for (namespace, name) in left {
            rest.entry(namespace).or_default().insert(name);
        }
        unreadable.extend(self.get_each(&reading, &rest, may_be_absent).await);
        unreadable
    }

    /// Reads objects one by one. Returns what could not be read.
    async fn get_each(
        &mut self,
        reading: &Reading<'_, K::Cache>,
        all: &Names<'_>,
        may_be_absent: bool,
    ) -> Vec<Unreadable> {
        let mut unreadable = Vec::new();
        let one = async |(namespace, name): (&'_ str, &'_ str)| {
            let read = reading.projection.get(&self.client, &reading.resource, in_namespace(namespace), name).await;
            (namespace.to_owned(), name.to_owned(), read)
        };
        let names = all.iter().flat_map(|(namespace, names)| names.iter().map(|name| (*namespace, *name)));
        let reads = names.map(one).collect::<Vec<_>>();
        let mut reads = futures::stream::iter(reads).buffer_unordered(CONCURRENT_READS);
        let mut found = Vec::new();
        while let Some((namespace, name, read)) = reads.next().await {
            match read {
                Ok(read) => found.push(read),
                Err(error) if may_be_absent && is_not_served(&error) => {}
                Err(error) => {
                    let what = format!("{}/{name}", reading.path(in_namespace(&namespace)));
                    let error = ReadError::from_api(what, &error);
                    unreadable.push(Unreadable { namespace, name: Some(name), error });
                }
            }
        }
        drop(reads);
        for (change, date) in found {
            self.server_time = self.server_time.max(date);
            self.extract.update(&reading.source, change);
        }
        unreadable
    }

    /// Reads objects that should not exist any more, by their names in each namespace. Where many are looked for, the
    /// metadata of everything in the namespace is listed, as far as that is worth its pages; what is there after all
    /// is read one by one. Returns what could not be read.
    pub async fn check_absent(&mut self, source: SourceId, all: &Names<'_>) -> Vec<Unreadable> {
        let Some(reading) = self.sources.reading_source(source) else { return Vec::new() };
        let mut unreadable = Vec::new();
        let mut left = Names::new();
        let (many, few): (Vec<_>, Vec<_>) = all.iter().partition(|(_, names)| names.len() > ONE_BY_ONE);
        left.extend(few.into_iter().map(|(namespace, names)| (*namespace, names.clone())));
        let lists = many.iter().map(|(namespace, names)| list_absent(&self.client, &reading, namespace, names));
        let mut lists = futures::stream::iter(lists.collect::<Vec<_>>()).buffer_unordered(CONCURRENT_READS);
        let mut gone = Vec::new();
        while let Some((namespace, listed)) = lists.next().await {
            match listed {
                Ok(CheckedNames { absent, unknown, date }) => {
                    self.server_time = self.server_time.max(date);
                    gone.extend(absent.into_iter().map(|name| (namespace, name)));
                    if !unknown.is_empty() {
                        left.insert(namespace, unknown);
                    }
                }
                Err(error) => {
                    let error = ReadError::from_api(reading.path(in_namespace(namespace)), &error);
                    unreadable.push(Unreadable { namespace: namespace.to_owned(), name: None, error });
                }
            }
        }
        drop(lists);
        for (namespace, name) in gone {
            self.extract.update(&reading.source, deletion(namespace, name));
        }
        unreadable.extend(self.get_each(&reading, &left, false).await);
        unreadable
    }
}

fn in_namespace(namespace: &str) -> Option<&str> {
    Some(namespace).filter(|namespace| !namespace.is_empty())
}

/// What a list delivered of the names that were wanted.
struct ListedNames<'n, R> {
    changes: Vec<Change<R>>,
    /// The names that it did not get to, because it was given up.
    missing: BTreeSet<&'n str>,
    error: Option<kube::Error>,
    /// The API server's time.
    date: Option<Timestamp>,
}

/// What a list says about names that should not exist any more.
struct CheckedNames<'n> {
    /// They are not there.
    absent: BTreeSet<&'n str>,
    /// They are there, or it did not get to them.
    unknown: BTreeSet<&'n str>,
    /// The API server's time.
    date: Option<Timestamp>,
}

/// Lists a namespace, as far as that is worth its pages. A name that a complete list does not have is gone.
async fn list_names<'n, C: Cache>(
    client: &Client,
    reading: &Reading<'_, C>,
    namespace: &'n str,
    names: &BTreeSet<&'n str>,
) -> (&'n str, ListedNames<'n, C::Row>) {
    let mut listed = ListedNames { changes: Vec::new(), missing: names.clone(), error: None, date: None };
    let mut token = None;
    for _ in 0..=names.len() / NAMES_PER_PAGE {
        let home = in_namespace(namespace);
        let page = reading.projection.page(client, &reading.resource, home, &reading.selector, token.take()).await;
        let PageOf { items, more, date } = match page {
            Ok(page) => page,
            Err(error) => {
                listed.missing.clear();
                listed.error = Some(error);
                return (namespace, listed);
            }
        };
        listed.date = listed.date.max(date);
        for change in items {
            let (Change::Apply(Observed { id, .. }) | Change::Delete(id)) = &change else { continue };
            if let Some(name) = names.get(id.name.as_str()) {
                listed.missing.remove(name);
                listed.changes.push(change);
            }
        }
        token = more;
        if token.is_none() {
            let gone = std::mem::take(&mut listed.missing);
            listed.changes.extend(gone.into_iter().map(|name| deletion(namespace, name)));
            return (namespace, listed);
        }
    }
    (namespace, listed)
}

/// Lists the metadata of everything in a namespace, as far as that is worth its pages.
async fn list_absent<'n, C: Cache>(
    client: &Client,
    reading: &Reading<'_, C>,
    namespace: &'n str,
    names: &BTreeSet<&'n str>,
) -> (&'n str, Result<CheckedNames<'n>, kube::Error>) {
    let mut listed = CheckedNames { absent: names.clone(), unknown: BTreeSet::new(), date: None };
    let mut token = None;
    for _ in 0..=names.len() / NAMES_PER_PAGE {
        let page = reading.names(client, in_namespace(namespace), token.take()).await;
        let PageOf { items, more, date } = match page {
            Ok(page) => page,
            Err(error) => return (namespace, Err(error)),
        };
        listed.date = listed.date.max(date);
        listed.unknown.extend(items.iter().filter_map(|name| listed.absent.take(name.as_str())));
        token = more;
        if token.is_none() {
            return (namespace, Ok(listed));
        }
    }
    listed.unknown.append(&mut listed.absent);
    (namespace, Ok(listed))
}

/// There is nothing of this name.
fn deletion<R>(namespace: &str, name: &str) -> Change<R> {
    let namespace = in_namespace(namespace).map(str::to_owned);
    Change::Delete(ObjectId { namespace, ..ObjectId::named(name) })
}
