//! The grammar of filters. This is the only file that names the parser library.
//!
//! ```text
//! or       = and ( _ "or" _ and )*            not      = "not" _ not | grouping
//! and      = not ( _ "and" _ not )*           grouping = "(" or ")" | match
//! match    = selector ( "==" | "!=" | contains | not contains | matches | not matches ) value
//!          | selector ( is empty | is not empty )
//!          | value ( in | not in ) selector
//! selector = name ( "." name | "[" string "]" )*
//! value    = selector | number | string       string   = "…" with Go's escapes | `…`
//! ```
//!
//! Alternatives are tried in this order, and each token that is missing is recorded in the
//! [`Trace`]. After a failure inside of parentheses nothing else is tried at their start, so the
//! time is linear in the text; the words of `not not …` are counted in a loop.

use super::expression::{Expression, Match, Operator};
use super::trace::{Token, Trace};
use super::{FilterError, MAX_DEPTH};
use crate::go::literal::{unquoted, unquoted_raw};
use winnow::combinator::{alt, opt, preceded, repeat, separated, terminated};
use winnow::error::EmptyError;
use winnow::stream::{LocatingSlice, Location, Stateful, Stream};
use winnow::token::{literal, take_while};
use winnow::{Parser, Result};

type Input<'t> = Stateful<LocatingSlice<&'t str>, Trace>;
type Parsed<T> = Result<T, EmptyError>;

/// Parses a filter.
pub(super) fn parse(text: &str) -> Result<Expression<Match>, FilterError> {
    let mut input = Input { input: LocatingSlice::new(text), state: Trace::default() };
    let parsed = (opt(blank), or, opt(blank), end).parse_next(&mut input);
    match (input.state.verdict(text, parsed.is_ok()), parsed) {
        (None, Ok((_, expression, _, ()))) => Ok(expression),
        (Some(error), _) => Err(error),
        (None, Err(EmptyError)) => unreachable!("a failed parse has a reason"),
    }
}

fn or(input: &mut Input<'_>) -> Parsed<Expression<Match>> {
    let list: Vec<_> = separated(1.., and, (blank, token("or"), blank)).parse_next(input)?;
    Ok(one_or(list, Expression::Or))
}

fn and(input: &mut Input<'_>) -> Parsed<Expression<Match>> {
    let list: Vec<_> = separated(1.., not, (blank, token("and"), blank)).parse_next(input)?;
    Ok(one_or(list, Expression::And))
}

fn one_or<T>(
    mut list: Vec<Expression<T>>,
    several: fn(Vec<Expression<T>>) -> Expression<T>,
) -> Expression<T> {
    match list.len() {
        1 => list.remove(0),
        _ => several(list),
    }
}

fn not(input: &mut Input<'_>) -> Parsed<Expression<Match>> {
    let mut starts = vec![input.checkpoint()];
    while opt((token("not"), blank)).parse_next(input)?.is_some() {
        starts.push(input.checkpoint());
    }
    // A field may have the name `not`: the last words are tried as such.
    while let Some(start) = starts.pop() {
        input.reset(&start);
        if let Ok(inner) = grouping(input) {
            // Two negations cancel each other out.
            return Ok(if starts.len() % 2 == 1 { Expression::Not(Box::new(inner)) } else { inner });
        }
    }
    Err(EmptyError)
}

fn grouping(input: &mut Input<'_>) -> Parsed<Expression<Match>> {
    if opt(token("(")).parse_next(input)?.is_none() {
        return comparison.map(Expression::Leaf).parse_next(input);
    }
    // Each level takes a part of the stack, and clients choose the text.
    if input.state.depth == MAX_DEPTH {
        input.state.is_too_deep = true;
        return Err(EmptyError);
    }
    input.state.depth += 1;
    let inner = preceded(opt(blank), or).parse_next(input);
    input.state.depth -= 1;
    let inner = inner?;
    opt(blank).parse_next(input)?;
    closing(input, ")", "grouping", "Unmatched parentheses")?;
    Ok(inner)
}

fn comparison(input: &mut Input<'_>) -> Parsed<Match> {
    alt((selector_and_value, selector_alone, value_and_selector)).parse_next(input)
}

fn selector_and_value(input: &mut Input<'_>) -> Parsed<Match> {
    let operator = alt((
        symbol("==").value(Operator::Equal),
        symbol("!=").value(Operator::NotEqual),
        infix(&["contains"]).value(Operator::In),
        infix(&["not", "contains"]).value(Operator::NotIn),
        infix(&["matches"]).value(Operator::Matches),
        infix(&["not", "matches"]).value(Operator::NotMatches),
    ));
    let (selector, operator, value) = (selector, operator, value).parse_next(input)?;
    Ok(Match { selector, operator, value })
}

fn selector_alone(input: &mut Input<'_>) -> Parsed<Match> {
    let operator = alt((
        words(&["is", "empty"]).value(Operator::IsEmpty),
        words(&["is", "not", "empty"]).value(Operator::IsNotEmpty),
    ));
    let (selector, operator) = (selector, operator).parse_next(input)?;
    Ok(Match { selector, operator, value: String::new() })
}

fn value_and_selector(input: &mut Input<'_>) -> Parsed<Match> {
    let operator = alt((infix(&["in"]).value(Operator::In), infix(&["not", "in"]).value(Operator::NotIn)));
    let (value, operator) = (value, operator).parse_next(input)?;
    let start = input.current_token_start();
    let Some(selector) = opt(selector).parse_next(input)? else {
        input.state.error(start, "match", "Invalid selector");
        return Err(EmptyError);
    };
    Ok(Match { selector, operator, value })
}

fn selector(input: &mut Input<'_>) -> Parsed<Vec<String>> {
    let first = name(input)?;
    let inner = alt((preceded(token("."), name), index));
    let mut path = vec![first];
    repeat(0.., inner).fold(|| (), |(), inner| path.push(inner)).parse_next(input)?;
    Ok(path)
}

fn name(input: &mut Input<'_>) -> Parsed<String> {
    let letter = class("[a-zA-Z]", |char| char.is_ascii_alphabetic());
    let others = classes("[a-zA-Z0-9_]", |char| char.is_ascii_alphanumeric() || char == '_');
    (letter, others).take().map(str::to_owned).parse_next(input)
}

fn index(input: &mut Input<'_>) -> Parsed<String> {
    (token("["), opt(blank)).parse_next(input)?;
    let start = input.current_token_start();
    let Some(key) = opt(string).parse_next(input)? else {
        input.state.error(start, "index", "Invalid index");
        return Err(EmptyError);
    };
    opt(blank).parse_next(input)?;
    closing(input, "]", "index", "Unclosed index expression")?;
    Ok(key)
}

fn value(input: &mut Input<'_>) -> Parsed<String> {
    alt((selector.map(|path| path.join(".")), number, string)).parse_next(input)
}

fn number(input: &mut Input<'_>) -> Parsed<String> {
    let digits = || classes("[0-9]", |char| char.is_ascii_digit());
    let whole =
        alt((token("0").void(), (class("[1-9]", |char| ('1'..='9').contains(&char)), digits()).void()));
    let fraction = (token("."), class("[0-9]", |char| char.is_ascii_digit()), digits());
    let text = (opt(token("-")), whole, opt(fraction)).take().parse_next(input)?;
    // The text behind the number is not consumed: it belongs to the next rule.
    let after = input.checkpoint();
    let start = input.current_token_start();
    let is_whole = alt((blank, end, token(")").void())).parse_next(input).is_ok();
    input.reset(&after);
    if !is_whole {
        input.state.error(start, "number", "Invalid number literal");
        return Err(EmptyError);
    }
    Ok(text.to_owned())
}

fn string(input: &mut Input<'_>) -> Parsed<String> {
    let start = input.current_token_start();
    let quote = alt((token("`").value("`"), token("\"").value("\""))).parse_next(input)?;
    let inner = take_while(0.., |char| !quote.contains(char)).parse_next(input)?;
    closing(input, quote, "string", "Unterminated string literal")?;
    let text = if quote == "`" { Some(unquoted_raw(inner)) } else { unquoted(inner) };
    Ok(text.unwrap_or_else(|| {
        input.state.error(start, "string", "invalid syntax");
        String::new()
    }))
}

/// Reads the end of a rule that is wrong without it.
fn closing(input: &mut Input<'_>, text: &'static str, rule: &'static str, error: &'static str) -> Parsed<()> {
    let start = input.current_token_start();
    let closed = token(text).void().parse_next(input);
    if closed.is_err() {
        input.state.error(start, rule, error);
    }
    closed
}

/// An operator that needs no blanks around it.
fn symbol<'t>(text: &'static str) -> impl Parser<Input<'t>, (), EmptyError> {
    (opt(blank), token(text), opt(blank)).void()
}

/// An operator between two operands.
fn infix<'t>(list: &'static [&'static str]) -> impl Parser<Input<'t>, (), EmptyError> {
    terminated(words(list), blank)
}

/// Words with blanks before each.
fn words<'t>(list: &'static [&'static str]) -> impl Parser<Input<'t>, (), EmptyError> {
    move |input: &mut Input<'t>| {
        list.iter().try_for_each(|word| (blank, token(word)).void().parse_next(input))
    }
}

fn token<'t>(text: &'static str) -> impl Parser<Input<'t>, &'t str, EmptyError> {
    move |input: &mut Input<'t>| {
        let start = input.current_token_start();
        let found = literal(text).parse_next(input);
        found.inspect_err(|_| input.state.missing(start, Token::Literal(text)))
    }
}

fn class<'t>(name: &'static str, has: fn(char) -> bool) -> impl Parser<Input<'t>, (), EmptyError> {
    move |input: &mut Input<'t>| {
        let start = input.current_token_start();
        let found = take_while(1..=1, has).void().parse_next(input);
        found.inspect_err(|_| input.state.missing(start, Token::Class(name)))
    }
}

/// Any number of characters of a class; the one after them is not of it.
fn classes<'t>(name: &'static str, has: fn(char) -> bool) -> impl Parser<Input<'t>, &'t str, EmptyError> {
    move |input: &mut Input<'t>| {
        let found = take_while(0.., has).parse_next(input);
        let end = input.current_token_start();
        input.state.missing(end, Token::Class(name));
        found
    }
}

fn blank(input: &mut Input<'_>) -> Parsed<()> {
    let blanks = classes("[ \\t\\r\\n]", |char| matches!(char, ' ' | '\t' | '\r' | '\n'));
    blanks.verify(|found: &str| !found.is_empty()).void().parse_next(input)
}

fn end(input: &mut Input<'_>) -> Parsed<()> {
    if input.eof_offset() == 0 {
        return Ok(());
    }
    let start = input.current_token_start();
    input.state.missing(start, Token::End);
    Err(EmptyError)
}
