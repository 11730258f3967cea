//! Lists above the size of one answer are whole.

use lockmesh_tests::dev::Dev;
use lockmesh_tests::figures::Figures;
use lockmesh_tests::fleet::wait_until;
use lockmesh_tests::http::Client;
use serde_json::{Value, json};

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
fn long_catalog_lists_are_complete() {
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
