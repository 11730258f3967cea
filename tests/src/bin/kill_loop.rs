//! Kills `lockmesh dev` under load repeatedly: `kill_loop [ROUNDS]`, by default 50.

use lockmesh_tests::kill::kill_loop;

fn main() {
    let rounds = std::env::args().nth(1).map_or(50, |rounds| rounds.parse().expect("ROUNDS is a number"));
    let kept = kill_loop(rounds, None);
    println!("killed {rounds} times: all of {kept} acknowledgements were kept, no lock had two holders");
}
