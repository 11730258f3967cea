//! One function for each rule. None depends on this repository: exceptions come in as tables, so
//! that each rule can be shown to fail.

use super::mask::item_length;
use super::path::{lines_naming, lines_naming_crate};
use super::{Fault, Source, is_word, line_of, words};
use std::collections::BTreeMap;

/// A Rust file opens with a module doc.
pub fn opens_with_a_module_doc(source: &Source) -> Vec<Fault> {
    let first = source.text.lines().next().unwrap_or_default();
    let said = first.strip_prefix("//!").is_some_and(|words| words.trim().len() > 10);
    if said || !source.is_rust() {
        return Vec::new();
    }
    vec![Fault::new(
        source,
        1,
        "the first line must be `//!`, with the purpose of the file and its invariants",
    )]
}

/// A Rust file has at most this many lines.
pub fn file_is_short(source: &Source, most: usize) -> Vec<Fault> {
    let lines = source.text.lines().count();
    if lines <= most || !source.is_rust() {
        return Vec::new();
    }
    vec![Fault::new(source, most, format!("{lines} lines, at most {most}: split the file"))]
}

/// A function has at most this many lines, from its name to its last brace.
pub fn functions_are_short(source: &Source, most: usize) -> Vec<Fault> {
    let code = &source.code;
    let long = |at: usize| {
        let name: String = code[at + 2..].trim_start().chars().take_while(|c| is_word(*c)).collect();
        let lines = code[at..at + item_length(&code[at..])].lines().count();
        (lines > most && !name.is_empty()).then(|| {
            let what = format!(
                "`{name}` has {lines} lines, at most {most}: move branches into functions of their own"
            );
            Fault::new(source, line_of(code, at), what)
        })
    };
    words(code, "fn").filter_map(long).collect()
}

/// The lines of code of each type's `impl` blocks, over all files of a crate: a large type does not
/// get smaller by more files.
pub fn impl_lines(sources: &[&Source]) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for source in sources {
        let code = &source.real_code;
        for at in words(code, "impl").filter(|at| *at == 0 || code[..*at].ends_with('\n')) {
            let item = &code[at..at + item_length(&code[at..])];
            let head = item.split_once('{').map_or(item, |(head, _)| head);
            let code_lines = item.lines().filter(|line| !line.trim().is_empty()).count();
            *lines.entry(implementing_type(head)).or_default() += code_lines;
        }
    }
    lines
}

/// Returns the type that the head of an `impl` block names, without its path and parameters.
fn implementing_type(head: &str) -> String {
    let mut depth = 0_usize;
    let outside = head.chars().filter(|character| {
        depth += usize::from(*character == '<');
        let is_outside = depth == 0;
        depth -= usize::from(*character == '>').min(depth);
        is_outside
    });
    let flat: String = outside.collect();
    let flat = flat.split(" where ").next().unwrap_or_default();
    let named = flat.rsplit(" for ").next().unwrap_or_default().trim_start_matches("impl").trim();
    named.rsplit("::").next().unwrap_or_default().trim().to_owned()
}

/// A type has at most this many lines of code in its `impl` blocks, or as many as its exception
/// allows.
pub fn types_are_short(
    krate: &str,
    sources: &[&Source],
    most: usize,
    exceptions: &[(&str, &str, usize)],
) -> Vec<Fault> {
    let limit = |name: &str| {
        let own = exceptions.iter().find(|(place, known, _)| *place == krate && *known == name);
        own.map_or(most, |(_, _, limit)| *limit)
    };
    let large = impl_lines(sources).into_iter().filter(|(name, lines)| *lines > limit(name));
    let fault = |(name, lines): (String, usize)| {
        let most = limit(&name);
        let what =
            format!("`impl {name}` has {lines} lines of code, at most {most}: make values of its parts");
        Fault { path: krate.to_owned(), line: 0, what }
    };
    large.map(fault).collect()
}

/// A crate is named only in its homes: files, or folders with a `/` at the end. Tests are exempt.
pub fn crates_stay_home(source: &Source, homes: &[(&str, &[&str])]) -> Vec<Fault> {
    let away = homes.iter().filter(|(_, places)| !is_in(&source.path, places));
    let faults = away.flat_map(|(name, places)| {
        lines_naming_crate(&source.real_code, name).into_iter().map(move |line| {
            Fault::new(source, line, format!("names `{name}`, whose home is {}", places.join(", ")))
        })
    });
    faults.collect()
}

/// Every crate of the workspace's list has a home or is exempt, and every home names its crate.
pub fn homes_are_complete(
    manifest: &Source,
    sources: &[Source],
    homes: &[(&str, &[&str])],
    free: &[&str],
) -> Vec<Fault> {
    let listed: Vec<String> = section(&manifest.text, "[workspace.dependencies]")
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.trim().replace('-', "_"))
        .collect();
    let known = |name: &str| free.contains(&name) || homes.iter().any(|(crate_name, _)| *crate_name == name);
    let homeless = listed.iter().filter(|name| !known(name)).map(|name| {
        Fault::new(manifest, 0, format!("`{name}` has no line in the table of homes in tests/tests/tidy.rs"))
    });
    let gone = homes.iter().map(|(name, _)| *name).chain(free.iter().copied());
    let gone = gone.filter(|name| !listed.iter().any(|listed| listed == name)).map(|name| {
        Fault::new(
            manifest,
            0,
            format!("`{name}` has a line in tests/tests/tidy.rs, but the workspace does not list it"),
        )
    });
    let empty = homes.iter().flat_map(|(name, places)| places.iter().map(move |place| (name, place)));
    let empty = empty.filter(|(name, place)| {
        let here = sources.iter().filter(|source| is_in(&source.path, &[place]));
        !here.into_iter().any(|source| !lines_naming_crate(&source.code, name).is_empty())
    });
    let empty = empty
        .map(|(name, place)| Fault::new(manifest, 0, format!("`{name}` is not named in its home {place}")));
    homeless.chain(gone).chain(empty).collect()
}

/// Non-test code names none of these paths.
pub fn names_nothing_forbidden(source: &Source, forbidden: &[&str], why: &str) -> Vec<Fault> {
    let faults = forbidden.iter().flat_map(|path| {
        let lines = lines_naming(&source.real_code, path).into_iter();
        lines.map(move |line| Fault::new(source, line, format!("names `{path}`: {why}")))
    });
    faults.collect()
}

/// Non-test code names no module of its crate but these.
pub fn imports_only(source: &Source, modules: &[&str]) -> Vec<Fault> {
    let code = &source.real_code;
    let others = code.match_indices("crate::").map(|(at, _)| at).filter(|at| {
        !modules.iter().any(|module| code[*at..].starts_with(module)) && !code[..*at].ends_with("pub(in ")
    });
    let why = format!("names another module of the crate than {}", modules.join(", "));
    others.map(|at| Fault::new(source, line_of(code, at), why.clone())).collect()
}

/// Non-test code contains none of these texts, each listed with its replacement.
pub fn holds_nothing_unfinished(source: &Source, pieces: &[(&str, &str)]) -> Vec<Fault> {
    let faults = pieces.iter().flat_map(|(piece, instead)| {
        let code = &source.real_code;
        let places = code.match_indices(piece).map(|(at, _)| at);
        let alone = places.filter(|at| !code[..*at].ends_with(is_word) || !piece.starts_with(is_word));
        alone.map(move |at| Fault::new(source, line_of(code, at), format!("`{piece}`: {instead}")))
    });
    faults.collect()
}

/// A function's name has no `get_`, unless the word is in the table.
pub fn names_have_no_get(source: &Source, words_of_others: &[&str]) -> Vec<Fault> {
    let code = &source.real_code;
    let faults = code.match_indices("fn get_").filter_map(|(at, _)| {
        let name: String = code[at + 3..].chars().take_while(|c| is_word(*c)).collect();
        let own = !words_of_others.contains(&name.as_str());
        own.then(|| Fault::new(source, line_of(code, at), format!("`{name}`: use the noun alone")))
    });
    faults.collect()
}

/// A file cites no document that a reader cannot open.
pub fn cites_nothing_hidden(source: &Source, citations: &[String]) -> Vec<Fault> {
    let lines = source.text.lines().enumerate();
    let faults = lines.flat_map(|(at, line)| {
        let cited = citations.iter().filter(|citation| line.contains(citation.as_str()));
        cited.map(move |citation| {
            Fault::new(
                source,
                at + 1,
                format!("cites `{citation}`, which no reader can open: write the fact itself"),
            )
        })
    });
    faults.collect()
}

/// The first three lines contain a word.
pub fn opens_with_the_word(source: &Source, word: &str) -> Vec<Fault> {
    let opening = source.text.lines().take(3).collect::<Vec<_>>().join(" ").to_lowercase();
    let missing = !opening.contains(word);
    missing
        .then(|| Fault::new(source, 1, format!("the first lines do not contain `{word}`")))
        .into_iter()
        .collect()
}

/// A file contains no word that the vocabulary replaces, alone or inside a name; each is listed
/// with its replacement.
pub fn says_the_fields_word(source: &Source, replaced: &[(&str, &str)]) -> Vec<Fault> {
    let lines = source.text.lines().enumerate();
    let faults = lines.flat_map(|(at, line)| {
        let said = segments(line);
        let found = replaced.iter().filter(move |(word, _)| {
            said.iter().any(|said| said == word || said.strip_suffix('s') == Some(word))
        });
        found.map(move |(word, instead)| Fault::new(source, at + 1, format!("`{word}`: say {instead}")))
    });
    faults.collect()
}

/// Returns the words of a line in lower case; names in snake case and camel case are split.
fn segments(line: &str) -> Vec<String> {
    let mut segments = vec![String::new()];
    let mut was_small = false;
    for letter in line.chars() {
        if !letter.is_ascii_alphabetic() || (letter.is_ascii_uppercase() && was_small) {
            segments.push(String::new());
        }
        if letter.is_ascii_alphabetic() {
            segments.last_mut().expect("it begins with one").push(letter.to_ascii_lowercase());
        }
        was_small = letter.is_ascii_lowercase();
    }
    segments
}

/// A comment has at most this many columns, so that it can be read beside other text.
pub fn comments_are_narrow(source: &Source, most: usize) -> Vec<Fault> {
    let mut in_picture = false;
    let lines = source.text.lines().enumerate().filter(|_| source.is_rust());
    let wide = lines.filter(|(_, line)| {
        let text = line.trim_start().trim_start_matches(['/', '!']).trim_start();
        in_picture ^= line.trim_start().starts_with("//") && text.starts_with("```");
        // Diagrams, code, tables and links cannot be wrapped, and are exempt.
        let can_wrap = !in_picture && !text.starts_with(['|', '[', '<']) && text.contains(' ');
        line.trim_start().starts_with("//") && line.chars().count() > most && can_wrap
    });
    let wrap = format!("wrap the comment at {most} columns");
    wide.map(|(at, _)| Fault::new(source, at + 1, wrap.clone())).collect()
}

/// A test sleeps only in stopped time, between two checks of a `while`, or in files of the table.
pub fn tests_wait_for_something(source: &Source, sleepers: &[(&str, &str)]) -> Vec<Fault> {
    let stopped = source.code.contains("start_paused = true");
    if !source.is_rust() || stopped || sleepers.iter().any(|(path, _)| is_in(&source.path, &[path])) {
        return Vec::new();
    }
    let sleeps = |text: &str| -> Vec<usize> {
        words(text, "sleep")
            .filter(|at| text[at + 5..].starts_with('('))
            .map(|at| line_of(text, at))
            .collect()
    };
    let real = sleeps(&source.real_code);
    let looks_again = |line: usize| {
        let before = line.checked_sub(2).and_then(|before| source.code.lines().nth(before));
        before.is_some_and(|before| before.trim_start().starts_with("while "))
    };
    let tests = sleeps(&source.code).into_iter().filter(|line| !real.contains(line) && !looks_again(*line));
    let what = "a sleep in a test is unreliable: wait for what must happen, or give the file a line in tests/tests/tidy.rs";
    tests.map(|line| Fault::new(source, line, what)).collect()
}

/// An exception from a lint states its reason.
pub fn exceptions_have_reasons(source: &Source) -> Vec<Fault> {
    let code = &source.code;
    let attributes = ["#[allow(", "#![allow(", "#[expect(", "#![expect("].into_iter();
    let bare = attributes.flat_map(|attribute| code.match_indices(attribute)).filter(|(at, _)| {
        let end = code[*at..].find(")]").map_or(code.len(), |length| at + length);
        !code[*at..end].contains("reason")
    });
    bare.map(|(at, attribute)| {
        Fault::new(source, line_of(code, at), format!("`{attribute}…` without `reason = …`"))
    })
    .collect()
}

/// A crate's manifest takes versions and lints from the workspace.
pub fn manifest_follows_the_workspace(manifest: &Source) -> Vec<Fault> {
    let mut faults = Vec::new();
    if section(&manifest.text, "[lints]").all(|line| line.trim() != "workspace = true") {
        faults.push(Fault::new(manifest, 0, "must say `workspace = true` under `[lints]`"));
    }
    for heading in ["[dependencies]", "[dev-dependencies]", "[build-dependencies]"] {
        let own = section(&manifest.text, heading).filter(|line| !line.contains("workspace = true"));
        faults.extend(
            own.map(|line| Fault::new(manifest, 0, format!("`{line}`: the workspace holds all versions"))),
        );
    }
    faults
}

/// A crate depends only on our crates listed in the table; its tests may use any.
pub fn crates_of_ours(manifest: &Source, ours: &str, allowed: &[&str]) -> Vec<Fault> {
    let names = section(&manifest.text, "[dependencies]")
        .map(|line| line.split(['.', ' ', '=']).next().unwrap_or_default());
    let strange = names.filter(|name| name.starts_with(ours) && !allowed.contains(name));
    strange.map(|name| Fault::new(manifest, 0, format!("must not depend on `{name}`"))).collect()
}

/// A crate lists no dependency that its own sources never name.
pub fn dependencies_are_used(manifest: &Source, own: &[&Source]) -> Vec<Fault> {
    let lists = ["[dependencies]", "[dev-dependencies]"].into_iter();
    let listed = lists.flat_map(|heading| section(&manifest.text, heading));
    let names = listed.map(|line| line.split(['.', ' ', '=']).next().unwrap_or_default().replace('-', "_"));
    let idle =
        names.filter(|name| own.iter().all(|source| lines_naming_crate(&source.code, name).is_empty()));
    idle.map(|name| Fault::new(manifest, 0, format!("lists `{name}`, which nothing in the crate names")))
        .collect()
}

/// The code map at the head of the crate's root names every module, and nothing that does not
/// exist. It may be a comment instead of documentation. A module is a folder below the crate's
/// sources, at any depth, or a file directly in them.
pub fn map_is_complete(root: &Source, krate: &str, modules: &[String]) -> Vec<Fault> {
    let head = root.text.lines().take_while(|line| line.is_empty() || line.starts_with("//"));
    // Documentation for users names types.
    let rows =
        head.map(|line| line.trim_start_matches(['/', '!', ' '])).filter(|line| line.starts_with("| `"));
    let first_cells = rows.filter_map(|line| line.split('|').nth(1));
    let named: Vec<&str> = first_cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
    let missing = modules.iter().filter(|module| !named.contains(&module.as_str()));
    let missing = missing.map(|module| format!("the code map of `{krate}/` does not name `{module}`"));
    let stale = named.iter().filter(|name| !modules.iter().any(|module| module == *name));
    let stale = stale.map(|name| format!("the code map of `{krate}/` names `{name}`, which does not exist"));
    missing.chain(stale).map(|what| Fault::new(root, 0, what)).collect()
}

/// A sample file is read by a test of the crate whose defaults it shows.
pub fn sample_is_tested(sample: &str, sources: &[Source]) -> bool {
    let name = sample.rsplit('/').next().unwrap_or(sample);
    let tests = |source: &&Source| source.is_rust() && source.code != source.real_code;
    let reads = |source: &Source| source.text.contains(name) && source.code.contains("::default()");
    sources.iter().filter(tests).any(reads)
}

/// Returns `true` if a path is one of these files or below one of these folders.
fn is_in(path: &str, places: &[&str]) -> bool {
    places.iter().any(|place| path == *place || (place.ends_with('/') && path.starts_with(place)))
}

/// Returns the lines of a manifest's section, without blank lines and comments.
fn section<'a>(manifest: &'a str, heading: &'a str) -> impl Iterator<Item = &'a str> {
    let lines = manifest.lines().skip_while(move |line| line.trim() != heading).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    lines.filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#'))
}
