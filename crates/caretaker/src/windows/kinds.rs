//! Kinds and names as people type them: those of the API, and those of the flux CLI.

use caretaker_windows::api::{FluxKind, KINDS};

use crate::config::{did_you_mean, suggest};

/// What the flux CLI writes in two words: the first, the second, and the kind.
const TWO_WORDS: [(&str, &str, &str); 8] = [
    ("source", "git", "GitRepository"),
    ("source", "oci", "OCIRepository"),
    ("source", "helm", "HelmRepository"),
    ("source", "chart", "HelmChart"),
    ("source", "bucket", "Bucket"),
    ("image", "repository", "ImageRepository"),
    ("image", "policy", "ImagePolicy"),
    ("image", "update", "ImageUpdateAutomation"),
];

/// Every kind.
const ALL: &str = "all";

/// Kinds, and the names behind them.
#[derive(Debug)]
pub(super) struct Words {
    pub kinds: Vec<&'static FluxKind>,
    pub names: Vec<String>,
}

impl Words {
    /// Reads `ks`, `ks,hr`, `ks hr`, `sources git`, `all`; behind a single kind also names: `ks apps`, `ks/apps`.
    pub fn parse(words: &[String]) -> Result<Self, String> {
        let (mut kinds, mut rest) = (Vec::new(), words);
        while let Some((found, used)) = kinds_at(rest) {
            kinds.extend(found);
            rest = &rest[used..];
        }
        let mut names = rest.to_vec();
        if let Some((kind, name)) = rest.first().and_then(|word| word.split_once('/')).filter(|_| kinds.is_empty()) {
            kinds = kinds_at(&[kind.to_owned()]).map(|(kinds, _)| kinds).ok_or_else(|| unknown(kind))?;
            name.clone_into(&mut names[0]);
        }
        match (kinds.as_slice(), names.first()) {
            ([], first) => return Err(unknown(first.map_or("", String::as_str))),
            ([_], _) | (_, None) => {}
            (_, Some(word)) => return Err(unknown(word)),
        }
        names.iter().try_for_each(|name| check_name("the name", name))?;
        Ok(Self { kinds, names })
    }

    /// The same with exactly one kind.
    pub fn parse_one(words: &[String]) -> Result<(&'static FluxKind, Vec<String>), String> {
        let Self { kinds, names } = Self::parse(words)?;
        match kinds.as_slice() {
            [kind] => Ok((kind, names)),
            _ => Err(format!("{:?} is more than one kind; name one, such as kustomization", words.join(" "))),
        }
    }
}

/// The kinds at the start of the words, and how many words they take.
fn kinds_at(words: &[String]) -> Option<(Vec<&'static FluxKind>, usize)> {
    let first = words.first()?.to_lowercase();
    if first == ALL {
        return Some((KINDS.iter().collect(), 1));
    }
    if let Some(second) = words.get(1).map(|word| singular(&word.to_lowercase())) {
        let group = singular(&first);
        let of_group = TWO_WORDS.iter().filter(|(first, ..)| *first == group);
        let named = of_group.filter(|(_, name, _)| second == ALL || *name == second);
        let kinds: Vec<_> = named.filter_map(|(.., kind)| by_kind(kind)).collect();
        if !kinds.is_empty() {
            return Some((kinds, 2));
        }
    }
    let kinds: Option<Vec<_>> = first.split(',').map(by_alias).collect();
    Some((kinds?, 1))
}

fn singular(word: &str) -> String {
    match word.strip_suffix("ies") {
        Some(stem) => format!("{stem}y"),
        None => word.strip_suffix('s').unwrap_or(word).to_owned(),
    }
}

fn by_kind(name: &str) -> Option<&'static FluxKind> {
    KINDS.iter().find(|kind| kind.kind == name)
}

fn by_alias(word: &str) -> Option<&'static FluxKind> {
    KINDS.iter().find(|kind| kind.aliases.contains(&word))
}

fn unknown(word: &str) -> String {
    let known: Vec<&str> = KINDS.iter().flat_map(|kind| kind.aliases.iter().copied()).collect();
    let near = did_you_mean(&word.to_lowercase(), known.into_iter());
    let hint = if near.is_empty() {
        let plurals: Vec<&str> = KINDS.iter().map(|kind| kind.aliases[1]).collect();
        suggest(word, &plurals)
    } else {
        near
    };
    format!("{word:?} is not a kind that can be suspended{hint}")
}

/// An error unless it can be the name of an object, or of a namespace.
pub(crate) fn check_name(what: &str, name: &str) -> Result<(), String> {
    const LONGEST: usize = 253;
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let ends = [name.bytes().next(), name.bytes().last()];
    let ends_well = ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()));
    if name.len() <= LONGEST && name.bytes().all(is_allowed) && ends_well {
        return Ok(());
    }
    Err(format!("{what} {name:?} cannot be one: write lower-case letters, digits, - and ."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[rstest]
    #[case::short("ks", "Kustomization:")]
    #[case::plural("kustomizations", "Kustomization:")]
    #[case::as_the_api_writes_it("GitRepository", "GitRepository:")]
    #[case::with_names("hr shop web", "HelmRelease:shop web")]
    #[case::with_a_slash("hr/shop web", "HelmRelease:shop web")]
    #[case::two_words("sources git", "GitRepository:")]
    #[case::two_words_and_a_name("source git fleet", "GitRepository:fleet")]
    #[case::images("images policies", "ImagePolicy:")]
    #[case::several("ks hr", "Kustomization HelmRelease:")]
    #[case::with_a_comma("ks,hr", "Kustomization HelmRelease:")]
    #[case::all_of_a_group("images all", "ImageRepository ImagePolicy ImageUpdateAutomation:")]
    fn kinds_and_names(#[case] text: &str, #[case] expected: &str) {
        let Words { kinds, names } = Words::parse(&words(text)).unwrap();

        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.kind).collect();
        assert_eq!(format!("{}:{}", kinds.join(" "), names.join(" ")), expected);
    }

    #[rstest]
    #[case("kustomisation", "\"kustomisation\" is not a kind that can be suspended; did you mean kustomization?")]
    #[case("ks hr shop", "\"shop\" is not a kind that can be suspended (known: ")]
    #[case("ks Shop", "the name \"Shop\" cannot be one: write lower-case letters, digits, - and .")]
    #[case("ks ../x", "the name \"../x\" cannot be one")]
    #[case("ks -x", "the name \"-x\" cannot be one")]
    #[case("deployment/web", "\"deployment\" is not a kind that can be suspended")]
    fn what_cannot_be_read_is_said(#[case] text: &str, #[case] expected: &str) {
        let error = Words::parse(&words(text)).unwrap_err();

        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn every_kind_is_all() {
        assert_eq!(Words::parse(&words("all")).unwrap().kinds.len(), KINDS.len());
    }
}
