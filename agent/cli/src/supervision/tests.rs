//! Stories of a guard and its supervisor: an input, and the actions that follow.

use super::*;

fn at(ms: u64) -> Moment {
    Moment::default() + Duration::from_millis(ms)
}

fn terms(deadline: Option<u64>) -> Terms {
    Terms { deadline: deadline.map(at), covers_descendants: true, lock_delay: Duration::from_secs(15) }
}

/// A running command's guard, whose hold lasts until second 10.
fn guard() -> Supervision {
    let mut guard = Supervision::new(Role::Guard(OnJeopardy::Ignore), terms(Some(10_000)));
    assert_eq!(guard.handle(at(0), Input::Message(Message::Started(7))), []);
    guard
}

/// A running command's supervisor, whose hold lasts until second 10.
fn supervisor() -> Supervision {
    let mut supervisor = Supervision::new(Role::Supervisor, terms(Some(10_000)));
    assert_eq!(supervisor.handle(at(0), Input::Started(7)), [Output::Send(Message::Started(7))]);
    supervisor
}

fn lost(loss: Loss) -> Input {
    Input::Hold(GuardState::Lost(loss))
}

fn finished(end: End, loss: Option<Loss>) -> Output {
    Output::Finished(Outcome { end: Ok(end), loss, is_interrupted: false })
}

#[test]
fn message_survives_its_encoding() {
    for message in [
        Message::Deadline(at(1_234_567)),
        Message::Signal(10),
        Message::Stop(15, at(7)),
        Message::HoldEnded,
        Message::Started(70_000),
        Message::NotStarted(2),
        Message::Exited(End::Code(255)),
        Message::Exited(End::Killed(9)),
        Message::TreeGone,
        Message::Killed,
    ] {
        assert_eq!(Message::decode(&message.encode()), Some(message));
    }
    assert_eq!(Message::decode(&[0; message::LENGTH]), None);
}

#[test]
fn guard_kills_before_deadline() {
    let mut guard = guard();
    assert_eq!(guard.wakes_at(), Some(at(9_950)));
    assert_eq!(guard.handle(at(9_949), Input::Tick), []);
    assert_eq!(
        guard.handle(at(9_950), Input::Tick),
        [Output::KillTree, Output::Send(Message::Deadline(at(9_950))), Output::Report(Report::Killing(None)),]
    );
    // The processes may have forked meanwhile.
    assert_eq!(guard.handle(at(9_960), Input::Tick), [Output::KillTree]);
    assert_eq!(guard.handle(at(9_965), Input::Message(Message::Killed)), []);
    assert_eq!(guard.handle(at(9_970), Input::Message(Message::Exited(End::Killed(9)))), []);
    assert_eq!(guard.handle(at(9_971), Input::Message(Message::TreeGone)), [], "the reason is not known yet");
    assert_eq!(guard.wakes_at(), Some(at(10_000)));
    assert_eq!(
        guard.handle(at(10_000), lost(Loss::Deadline)),
        [finished(End::Killed(9), Some(Loss::NodeDeadline))]
    );
}

#[test]
fn renewed_deadline_replaces_earlier_one() {
    let mut guard = guard();
    let renewed = Input::Hold(GuardState::Safe { deadline: at(14_000) });
    assert_eq!(guard.handle(at(3_000), renewed.clone()), [Output::Send(Message::Deadline(at(14_000)))]);
    assert_eq!(guard.handle(at(3_001), renewed), []);
    assert_eq!(guard.wakes_at(), Some(at(13_950)));
    let mut supervisor = supervisor();
    assert_eq!(supervisor.handle(at(3_000), Input::Message(Message::Deadline(at(14_000)))), []);
    assert_eq!(supervisor.wakes_at(), Some(at(13_950)));
    assert_eq!(
        supervisor.handle(at(13_950), Input::Tick)[..2],
        [Output::KillTree, Output::Send(Message::Killed)]
    );
}

#[test]
fn renewal_after_kill_ignored() {
    let mut guard = guard();
    guard.handle(at(9_950), Input::Tick);
    assert_eq!(guard.handle(at(9_955), Input::Hold(GuardState::Safe { deadline: at(15_000) })), []);
    guard.handle(at(9_956), Input::Message(Message::TreeGone));
    assert_eq!(guard.handle(at(10_000), Input::Tick), [finished(End::Killed(9), Some(Loss::NodeDeadline))]);
}

#[test]
fn dead_guard_grace_ends_by_deadline() {
    for (died_at, killed_at) in [(1_000, 6_000), (7_000, 9_950)] {
        let mut supervisor = supervisor();
        assert_eq!(
            supervisor.handle(at(died_at), Input::PeerGone),
            [Output::Report(Report::PeerGone(Role::Supervisor)), Output::SignalTree(TERM)]
        );
        assert_eq!(supervisor.wakes_at(), Some(at(killed_at)));
        assert_eq!(supervisor.handle(at(killed_at), Input::Tick)[0], Output::KillTree);
    }
}

#[test]
fn dead_guards_hold_released_after_tree() {
    let mut supervisor = supervisor();
    supervisor.handle(at(1_000), Input::PeerGone);
    assert_eq!(supervisor.handle(at(1_100), Input::Exited(End::Killed(15))), []);
    assert_eq!(
        supervisor.handle(at(1_200), Input::TreeGone { guard_runs: true }),
        [Output::GiveBack(at(9_950))]
    );
    assert_eq!(supervisor.handle(at(1_300), Input::GaveBack), [finished(End::Killed(15), None)]);
}

#[test]
fn supervisor_leaves_release_to_guard() {
    let mut supervisor = supervisor();
    assert_eq!(
        supervisor.handle(at(100), Input::Exited(End::Code(0))),
        [Output::Send(Message::Exited(End::Code(0)))]
    );
    assert_eq!(
        supervisor.handle(at(100), Input::TreeGone { guard_runs: true }),
        [Output::Send(Message::TreeGone)]
    );
    assert_eq!(supervisor.handle(at(599), Input::Tick), []);
    assert_eq!(
        supervisor.handle(at(600), Input::Tick),
        [Output::GiveBack(at(9_950))],
        "the guard stands still"
    );
    assert_eq!(supervisor.handle(at(700), Input::PeerGone), []);
    assert_eq!(
        supervisor.handle(at(701), Input::Message(Message::HoldEnded)),
        [finished(End::Code(0), None)]
    );
}

#[test]
fn supervisor_of_stopped_guard_releases_immediately() {
    let mut supervisor = supervisor();
    supervisor.handle(at(100), Input::Exited(End::Code(0)));
    assert_eq!(
        supervisor.handle(at(100), Input::TreeGone { guard_runs: false }),
        [Output::Send(Message::TreeGone), Output::GiveBack(at(9_950))]
    );
}

#[test]
fn kill_deadline_does_not_shorten_hold() {
    let mut supervisor = supervisor();
    supervisor.handle(at(501), Input::Message(Message::Deadline(at(500))));
    let outputs = supervisor.handle(at(510), Input::TreeGone { guard_runs: false });
    assert_eq!(outputs.last(), Some(&Output::GiveBack(at(9_950))));
}

#[test]
fn supervisor_waits_longer_for_killing_guard() {
    // The last is a renewal that a stopped supervisor reads late.
    for (deadline, gives_back_at) in [(None, 20_500), (Some(9_950), 23_000), (Some(14_000), 20_500)] {
        let mut supervisor = supervisor();
        supervisor.handle(at(19_900), Input::Tick);
        if let Some(deadline) = deadline {
            supervisor.handle(at(19_900), Input::Message(Message::Deadline(at(deadline))));
        }
        supervisor.handle(at(20_000), Input::TreeGone { guard_runs: true });
        assert_eq!(supervisor.wakes_at(), Some(at(gives_back_at)), "{deadline:?}");
    }
}

#[test]
fn guard_releases_after_tree_end() {
    let mut guard = guard();
    assert_eq!(guard.handle(at(100), Input::Message(Message::Exited(End::Code(3)))), []);
    assert_eq!(guard.handle(at(1_100), Input::Tick), [Output::Report(Report::Remainder)]);
    assert_eq!(guard.handle(at(2_000), Input::Message(Message::TreeGone)), [finished(End::Code(3), None)]);
    assert_eq!(guard.handle(at(2_050), Input::HoldEnded), [Output::Send(Message::HoldEnded)]);
}

/// The guard was stopped meanwhile.
#[test]
fn late_read_exit_is_no_loss() {
    let mut guard = guard();
    assert_eq!(guard.handle(at(60_000), Input::Message(Message::Exited(End::Code(0)))), []);
    assert_eq!(guard.handle(at(60_000), Input::Message(Message::TreeGone)), [finished(End::Code(0), None)]);
}

#[test]
fn signal_after_exit_dropped() {
    let mut supervisor = supervisor();
    supervisor.handle(at(100), Input::Exited(End::Code(0)));
    supervisor.handle(at(100), Input::TreeGone { guard_runs: true });
    assert_eq!(supervisor.handle(at(101), Input::Message(Message::Signal(TERM))), []);
}

#[test]
fn loss_grace_capped_by_deadline() {
    let mut guard = guard();
    guard.handle(at(8_000), Input::Stop(TERM));
    let outputs = guard.handle(at(9_000), lost(Loss::Unwatched("no leader".into())));
    assert_eq!(outputs, [Output::Send(Message::Deadline(at(10_000)))]);
}

#[test]
fn uncovered_descendants_do_not_delay_release() {
    let uncovered = Terms { covers_descendants: false, ..terms(Some(10_000)) };
    let mut guard = Supervision::new(Role::Guard(OnJeopardy::Ignore), uncovered);
    guard.handle(at(0), Input::Message(Message::Started(7)));
    assert_eq!(
        guard.handle(at(100), Input::Message(Message::Exited(End::Code(0)))),
        [finished(End::Code(0), None)]
    );
    let mut supervisor = Supervision::new(Role::Supervisor, uncovered);
    supervisor.handle(at(0), Input::Started(7));
    supervisor.handle(at(100), Input::Exited(End::Code(0)));
    assert_eq!(supervisor.handle(at(101), Input::PeerGone), [Output::GiveBack(at(9_950))]);
}

#[test]
fn loss_without_lock_delay_kills_immediately() {
    for loss in [Loss::Deleted, Loss::Taken("other".into()), Loss::NodeDeadline] {
        let mut guard = guard();
        assert_eq!(
            guard.handle(at(500), lost(loss.clone())),
            [
                Output::KillTree,
                Output::Send(Message::Deadline(at(500))),
                Output::Report(Report::Killing(Some(loss.clone()))),
            ]
        );
        assert_eq!(
            guard.handle(at(505), Input::Message(Message::TreeGone)),
            [finished(End::Killed(9), Some(loss))]
        );
    }
}

#[test]
fn loss_grace_fits_lock_delay() {
    let ended = Loss::Ended("destroyed".into());
    for (lock_delay, grace) in [(15, 5_000), (2, 1_000), (0, 0)] {
        assert_eq!(grace_after(&ended, Duration::from_secs(lock_delay)), Duration::from_millis(grace));
    }
    let mut guard = guard();
    assert_eq!(
        guard.handle(at(500), lost(ended.clone())),
        [Output::Send(Message::Stop(TERM, at(5_500))), Output::Report(Report::Ending(ended))]
    );
    assert_eq!(guard.handle(at(600), Input::Hold(GuardState::Safe { deadline: at(20_000) })), []);
    assert_eq!(guard.wakes_at(), Some(at(5_500)));
}

#[test]
fn guard_replaces_dead_supervisor() {
    let mut guard = guard();
    assert_eq!(
        guard.handle(at(500), Input::PeerGone),
        [Output::Report(Report::PeerGone(Role::Guard(OnJeopardy::Ignore))), Output::SignalTree(TERM)]
    );
    assert_eq!(guard.handle(at(600), Input::Exited(End::Killed(9))), []);
    assert_eq!(guard.wakes_at(), Some(at(5_500)));
    assert_eq!(guard.handle(at(5_500), Input::Tick)[0], Output::KillTree);
    assert_eq!(
        guard.handle(at(5_505), Input::TreeGone { guard_runs: true }),
        [finished(End::Killed(9), None)]
    );
}

#[test]
fn guard_kills_unresponsive_supervisor() {
    let mut guard = guard();
    guard.handle(at(9_950), Input::Tick);
    assert_eq!(guard.handle(at(10_049), lost(Loss::NodeDeadline))[0], Output::KillTree);
    assert!(guard.handle(at(10_050), Input::Tick).contains(&Output::KillSupervisor));
    // Its processes are children of the guard now.
    assert_eq!(guard.handle(at(10_051), Input::PeerGone), [Output::KillTree]);
    assert_eq!(
        guard.handle(at(10_060), Input::TreeGone { guard_runs: true }),
        [finished(End::Killed(9), Some(Loss::NodeDeadline))]
    );
}

#[test]
fn signals_go_through_supervisor() {
    let mut guard = guard();
    assert_eq!(guard.handle(at(1), Input::Forward(10)), [Output::Send(Message::Signal(10))]);
    assert_eq!(
        guard.handle(at(2), Input::Suspend),
        [Output::Send(Message::Signal(STOP)), Output::SuspendSelf]
    );
    assert_eq!(guard.handle(at(3), Input::Continued), [Output::Send(Message::Signal(CONT))]);
    let mut supervisor = supervisor();
    assert_eq!(supervisor.handle(at(1), Input::Message(Message::Signal(10))), [Output::Signal(10)]);
    supervisor.handle(at(2), Input::Exited(End::Code(0)));
    assert_eq!(
        supervisor.handle(at(3), Input::Message(Message::Signal(10))),
        [Output::SignalTree(10)],
        "its descendants may have other groups"
    );
}

#[test]
fn interrupt_of_lost_command_reported() {
    let gone = |end| [Message::Exited(end), Message::TreeGone].map(Input::Message);
    // (signal, before the loss, end of the command, reported)
    for (signal, comes_before, end, is_interrupted) in [
        (2, false, End::Killed(15), true),
        (2, true, End::Killed(2), true),
        (1, true, End::Killed(15), false),
        (10, false, End::Killed(10), false),
    ] {
        let mut guard = guard();
        let mut inputs = [lost(Loss::SessionGone), Input::Forward(signal)];
        if comes_before {
            inputs.reverse();
        }
        let last = inputs.into_iter().chain(gone(end)).flat_map(|input| guard.handle(at(1), input)).last();
        let outcome = Outcome { end: Ok(end), loss: Some(Loss::SessionGone), is_interrupted };
        assert_eq!(last, Some(Output::Finished(outcome)), "signal {signal}");
    }
}

#[test]
fn resume_after_deadline_kills_command() {
    let mut guard = guard();
    guard.handle(at(1), Input::Suspend);
    assert_eq!(guard.handle(at(20_000), Input::Continued)[0], Output::KillTree);
    assert!(!guard.handle(at(20_001), Input::Continued).contains(&Output::Send(Message::Signal(CONT))));
}

#[test]
fn jeopardy_terminates_command_on_request() {
    let mut guard = Supervision::new(Role::Guard(OnJeopardy::Terminate), terms(Some(10_000)));
    guard.handle(at(0), Input::Message(Message::Started(7)));
    let late = Input::Hold(GuardState::Jeopardy { deadline: at(10_000) });
    assert_eq!(
        guard.handle(at(7_000), late.clone()),
        [
            Output::Report(Report::Jeopardy),
            Output::Send(Message::Signal(TERM)),
            Output::Send(Message::Signal(CONT)),
        ]
    );
    assert_eq!(guard.handle(at(7_500), late), [], "once for each time that it is late");
}

#[test]
fn command_not_started_after_deadline() {
    let supervisor = Supervision::new(Role::Supervisor, terms(Some(10_000)));
    assert!(supervisor.may_start(at(9_949)) && !supervisor.may_start(at(9_950)));
    assert!(Supervision::new(Role::Supervisor, terms(None)).may_start(at(99_999)));
    let mut guard = Supervision::new(Role::Guard(OnJeopardy::Ignore), terms(Some(10_000)));
    assert_eq!(
        guard.handle(at(5), Input::Message(Message::NotStarted(2))),
        [Output::Finished(Outcome { end: Err(2), loss: None, is_interrupted: false })]
    );
}
