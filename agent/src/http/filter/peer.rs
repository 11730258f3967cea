//! Selectors of binding rules: filters of the users of a host, as steps that the servers evaluate.

use super::FilterError;
use super::expression::{Expression, Match, Operator};
use super::grammar;
use lockmesh_protocol::acl::peer::{PeerField, SelectorStep};

/// Parses a selector; an empty one has no steps.
pub(in crate::http) fn peer_selector(text: &str) -> Result<Vec<SelectorStep>, FilterError> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut steps = Vec::new();
    push(&grammar::parse(text)?, &mut steps)?;
    Ok(steps)
}

/// Appends the steps of an expression. Its depth is limited by the grammar.
fn push(expression: &Expression<Match>, steps: &mut Vec<SelectorStep>) -> Result<(), FilterError> {
    let (list, join) = match expression {
        Expression::Leaf(leaf) => return push_match(leaf, steps),
        Expression::Not(inner) => {
            push(inner, steps)?;
            steps.push(SelectorStep::Not);
            return Ok(());
        }
        Expression::And(list) => (list, SelectorStep::And),
        Expression::Or(list) => (list, SelectorStep::Or),
    };
    for (number, one) in list.iter().enumerate() {
        push(one, steps)?;
        steps.extend((number > 0).then(|| join.clone()));
    }
    Ok(())
}

fn push_match(leaf: &Match, steps: &mut Vec<SelectorStep>) -> Result<(), FilterError> {
    let selector = leaf.selector.join(".");
    let field = PeerField::named(&selector).ok_or_else(|| FilterError::Selector(selector.clone()))?;
    let is_list = field == PeerField::Groups;
    let is_supported = match leaf.operator {
        Operator::Equal | Operator::NotEqual => !is_list,
        Operator::In | Operator::NotIn => is_list,
        Operator::IsEmpty | Operator::IsNotEmpty | Operator::Matches | Operator::NotMatches => false,
    };
    if !is_supported {
        return Err(FilterError::Operator { operator: leaf.operator.name(), selector });
    }
    let is_number = matches!(field, PeerField::Uid | PeerField::Gid);
    if is_number && let Err(error) = leaf.value.parse::<u32>() {
        let (value, reason) = (leaf.value.clone(), error.to_string());
        return Err(FilterError::Value { value, selector, reason });
    }
    steps.push(SelectorStep::Has(field, leaf.value.clone()));
    steps.extend(leaf.operator.is_negated().then_some(SelectorStep::Not));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_becomes_postfix_steps() {
        use PeerField::{Groups, Node, Uid, User};
        use SelectorStep::{And, Has, Not, Or};
        let has = |field, value: &str| Has(field, value.into());
        for (text, steps) in [
            ("", vec![]),
            ("uid == 1001", vec![has(Uid, "1001")]),
            (r#"user == "a" and node != "n1""#, vec![has(User, "a"), has(Node, "n1"), Not, And]),
            (
                r#"user == "a" or (user == "b" and not "wheel" in groups)"#,
                vec![has(User, "a"), has(User, "b"), has(Groups, "wheel"), Not, And, Or],
            ),
        ] {
            assert_eq!(peer_selector(text), Ok(steps), "{text}");
        }
    }

    #[test]
    fn unsupported_conditions_rejected() {
        for text in
            ["exe == x", "groups == wheel", "uid == deploy", "user matches \"a.*\"", "uid", "\"a\" in user"]
        {
            assert!(peer_selector(text).is_err(), "{text}");
        }
    }
}
