//! Lists above the size of one answer: they are whole, or visibly broken off.

use lockmesh_tests::dev::Dev;
use lockmesh_tests::figures::Figures;
use lockmesh_tests::fleet::wait_until;
use lockmesh_tests::http::Client;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

/// The size of an answer above which it is sent in parts.
const LIMIT: usize = 8 << 20;

/// The number of lists that are being read in parts.
fn views(client: &Client) -> f64 {
    Figures::parse(client.get("/metrics").expect(200).text()).value("lockmesh_server_views")
}

fn rows(client: &Client, path: &str) -> Vec<Value> {
    let answer = client.get(path).expect(200);
    answer.json().as_array().expect("a list").clone()
}

#[test]
fn lists_of_catalog_and_health_may_have_any_size() {
    const NODES: usize = 25;
    const CHECKS: usize = 100;
    let server = Dev::start(&[]);
    let client = server.client();
    let output = "x".repeat(4 << 10);
    for node in 0..NODES {
        let check = |number: usize| json!({"CheckID": format!("c{number}"), "ServiceID": "web", "Status": "passing", "Output": output});
        let checks: Vec<Value> = (0..CHECKS).map(check).collect();
        let registration = json!({"Node": format!("big-{node:02}"), "Address": "10.0.0.1",
            "Service": {"Service": "web"}, "Checks": checks});
        client.put("/v1/catalog/register", registration.to_string()).expect(200);
    }
    let path = "/v1/health/checks/web";
    assert!(client.get(path).expect(200).text().len() > LIMIT);
    let listed = rows(&client, path);
    let places = (0..NODES).flat_map(|node| (0..CHECKS).map(move |number| (node, number)));
    let mut expected: Vec<_> =
        places.map(|(node, number)| (format!("big-{node:02}"), format!("c{number}"))).collect();
    expected.sort();
    let place =
        |row: &Value| (row["Node"].as_str().unwrap().to_owned(), row["CheckID"].as_str().unwrap().to_owned());
    assert_eq!(listed.iter().map(place).collect::<Vec<_>>(), expected);
    assert_eq!(rows(&client, &format!("{path}?filter=CheckID==c7")).len(), NODES);
    let instances = rows(&client, "/v1/health/service/web");
    assert_eq!(instances.len(), NODES);
    assert!(instances.iter().all(|row| row["Checks"].as_array().map(Vec::len) == Some(CHECKS)));
    wait_until(|| views(&client) == 0.0);
}

/// The reader takes the head of a long list and nothing more, until the list's view has ended: not
/// by its time, but because as much was replaced meanwhile as a view may keep.
#[test]
fn a_list_that_is_not_read_in_time_is_broken_off_and_costs_others_nothing() {
    const KEYS: usize = 17;
    const BYTES: usize = 500 << 10;
    let server = Dev::start(&[]);
    let client = server.client();
    // Another value each time, or nothing would be replaced.
    let letter = |number: usize| if (number / KEYS).is_multiple_of(2) { "x" } else { "y" };
    let set =
        |number: usize| client.set(&format!("slow/{:02}", number % KEYS), &letter(number).repeat(BYTES));
    (0..KEYS).for_each(set);
    let whole = rows(&client, "/v1/kv/slow/?recurse");
    assert_eq!(whole.len(), KEYS);

    let path = server.socket.as_ref().expect("it has a Unix socket");
    let mut reader = UnixStream::connect(path).expect("it listens");
    reader.write_all(b"GET /v1/kv/slow/?recurse HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is sent");
    let mut received = vec![0; 1 << 10];
    reader.read_exact(&mut received).expect("the list begins");
    assert!(received.starts_with(b"HTTP/1.1 200 OK\r\n"));
    wait_until(|| views(&client) == 1.0);

    (KEYS..(64 << 20) / BYTES + 2 * KEYS).for_each(set);
    wait_until(|| views(&client) == 0.0);
    assert_eq!(rows(&client, "/v1/kv/slow/?recurse").len(), KEYS, "others read as ever");

    // A reset, or the end of the connection: both come before the end of the body.
    let _ = reader.read_to_end(&mut received);
    assert!(received.len() < KEYS * BYTES, "most of it was never sent");
    assert!(!received.ends_with(b"0\r\n\r\n"), "no client takes it for the whole");
}
