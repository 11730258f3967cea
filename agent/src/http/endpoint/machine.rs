//! `/v1/agent/host`: memory, processors, system and disk of this machine, as the kernel shows them.
//! Sizes in bytes, times in seconds, `CollectionTime` in nanoseconds.
//!
//! A part that cannot be read is empty, and `Errors` has the reason.

use super::super::answer::{self, Failure};
use super::super::body::Body;
use super::super::call::Call;
use http::Response;
use serde_json::{Map, Value, json};
use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

/// The file system that is described.
const DISK: &str = "/";

/// The fields of `Memory`, and their names in `/proc/meminfo`.
const MEMORY: [(&str, &str); 24] = [
    ("total", "MemTotal"),
    ("available", "MemAvailable"),
    ("free", "MemFree"),
    ("active", "Active"),
    ("inactive", "Inactive"),
    ("buffers", "Buffers"),
    ("cached", "Cached"),
    ("writeback", "Writeback"),
    ("dirty", "Dirty"),
    ("writebacktmp", "WritebackTmp"),
    ("shared", "Shmem"),
    ("slab", "Slab"),
    ("sreclaimable", "SReclaimable"),
    ("sunreclaim", "SUnreclaim"),
    ("pagetables", "PageTables"),
    ("swapcached", "SwapCached"),
    ("commitlimit", "CommitLimit"),
    ("committedas", "Committed_AS"),
    ("swaptotal", "SwapTotal"),
    ("swapfree", "SwapFree"),
    ("mapped", "Mapped"),
    ("vmalloctotal", "VmallocTotal"),
    ("vmallocused", "VmallocUsed"),
    ("hugepagesize", "Hugepagesize"),
];

pub(super) async fn host(call: &Call<'_>) -> Result<Response<Body>, Failure> {
    // The text about many processors is long, and a disk may be slow.
    let described = tokio::task::spawn_blocking(describe).await;
    let shape = described.map_err(|_| Failure::not_done("the agent is shutting down"))?;
    Ok(answer::json(&shape, call.layout()))
}

fn describe() -> Value {
    let mut errors = Vec::new();
    let mut read = |path: &str| {
        std::fs::read_to_string(path).unwrap_or_else(|error| {
            errors.push(format!("{path}: {error}"));
            String::new()
        })
    };
    let (memory, cpus) = (memory(&read("/proc/meminfo")), cpus(&read("/proc/cpuinfo")));
    let mounts = read("/proc/self/mounts");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let host = host_of(now.as_secs(), &cpus);
    let disk = disk(&mounts).unwrap_or_else(|error| {
        errors.push(format!("{DISK}: {error}"));
        json!({})
    });
    json!({
        "Memory": memory,
        "CPU": cpus,
        "Host": host,
        "Disk": disk,
        "CollectionTime": u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
        "Errors": (!errors.is_empty()).then_some(errors),
    })
}

fn memory(meminfo: &str) -> Value {
    let size = |name: &str| -> u64 {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kibibytes = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kibibytes.map_or(0, |size| size << 10)
    };
    let mut shape: Map<String, Value> =
        MEMORY.iter().map(|(field, name)| ((*field).into(), size(name).into())).collect();
    // The kernel frees its caches for programs that need the memory.
    let freed = ["MemFree", "Buffers", "Cached", "SReclaimable"].map(size).iter().sum();
    let (total, used) = (size("MemTotal"), size("MemTotal").saturating_sub(freed));
    shape.insert("used".into(), used.into());
    shape.insert("usedPercent".into(), percent(used, total).into());
    shape.into()
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

/// Returns the processors in the order of the kernel. Fields that an architecture lacks are empty.
fn cpus(cpuinfo: &str) -> Vec<Value> {
    let processors = cpuinfo.split("\n\n").filter(|text| text.lines().any(|l| l.starts_with("processor")));
    let shapes = processors.enumerate().map(|(number, text)| {
        let field = |name: &str| {
            let pairs = text.lines().filter_map(|line| line.split_once(':'));
            let found = pairs.clone().find(|(known, _)| known.trim() == name);
            found.map_or("", |(_, value)| value.trim())
        };
        let count = |name: &str| field(name).split(' ').next().and_then(|text| text.parse::<u64>().ok());
        json!({
            "cpu": count("processor").unwrap_or(number as u64),
            "vendorId": field("vendor_id"),
            "family": field("cpu family"),
            "model": field("model"),
            "stepping": count("stepping").unwrap_or(0),
            "physicalId": field("physical id"),
            "coreId": field("core id"),
            "cores": 1,
            "modelName": field("model name"),
            "mhz": field("cpu MHz").parse::<f64>().unwrap_or(0.0),
            "cacheSize": count("cache size").unwrap_or(0),
            "flags": field("flags").split_whitespace().collect::<Vec<_>>(),
            "microcode": field("microcode"),
        })
    });
    shapes.collect()
}

fn host_of(now: u64, cpus: &[Value]) -> Value {
    let system = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    let info = rustix::system::sysinfo();
    let uptime = u64::try_from(info.uptime).unwrap_or(0);
    // Containers may lack it.
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let is_guest = cpus.iter().any(|cpu| {
        cpu["flags"].as_array().is_some_and(|flags| flags.iter().any(|flag| flag == "hypervisor"))
    });
    json!({
        "hostname": text(system.nodename()),
        "uptime": uptime,
        "bootTime": now.saturating_sub(uptime),
        "procs": info.procs,
        "os": "linux",
        "platform": os_release(&release, "ID"),
        "platformFamily": os_release(&release, "ID_LIKE"),
        "platformVersion": os_release(&release, "VERSION_ID"),
        "kernelVersion": text(system.release()),
        "kernelArch": text(system.machine()),
        "virtualizationRole": if is_guest { "guest" } else { "" },
    })
}

fn os_release<'a>(release: &'a str, name: &str) -> &'a str {
    let value = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_default().trim_matches('"')
}

fn disk(mounts: &str) -> io::Result<Value> {
    let disk = rustix::fs::statvfs(DISK)?;
    let (total, free) = (disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize);
    let used = disk.f_blocks.saturating_sub(disk.f_bfree) * disk.f_frsize;
    let inodes_used = disk.f_files.saturating_sub(disk.f_ffree);
    // The last one covers the others.
    let mut fields = mounts.lines().map(|line| line.split(' '));
    let kind = fields.rfind(|fields| fields.clone().nth(1) == Some(DISK)).and_then(|mut all| all.nth(2));
    Ok(json!({
        "path": DISK,
        "fstype": kind.unwrap_or_default(),
        "total": total,
        "free": free,
        "used": used,
        // Of what programs can use: a part is reserved for the administrator.
        "usedPercent": percent(used, used + free),
        "inodesTotal": disk.f_files,
        "inodesUsed": inodes_used,
        "inodesFree": disk.f_ffree,
        "inodesUsedPercent": percent(inodes_used, disk.f_files),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_system_files() {
        let shape = memory(
            "MemTotal:  1000 kB\nMemFree:  100 kB\nBuffers: 10 kB\nCached: 200 kB\nSReclaimable: 90 kB\n",
        );
        assert_eq!((&shape["total"], &shape["used"]), (&json!(1_024_000), &json!(600 << 10)));
        assert_eq!((&shape["usedPercent"], &shape["dirty"]), (&json!(60.0), &json!(0)));
        let shapes = cpus(
            "processor\t: 0\nmodel name\t: C\ncpu MHz\t\t: 2.5\ncache size\t: 512 KB\nflags\t: fpu hypervisor\n\n\
             processor\t: 1\nmodel name\t: C\n\nHardware\t: board\n",
        );
        assert_eq!(shapes.len(), 2);
        assert_eq!((&shapes[0]["mhz"], &shapes[0]["cacheSize"]), (&json!(2.5), &json!(512)));
        assert_eq!((&shapes[1]["cpu"], &shapes[1]["flags"]), (&json!(1), &json!([])));
        assert_eq!(os_release("ID=debian\nVERSION_ID=\"12\"\n", "VERSION_ID"), "12");
        assert_eq!(disk("a /x ext4 rw\nb / xfs rw\n").expect("it exists")["fstype"], "xfs");
    }

    #[test]
    fn describes_this_machine_without_errors() {
        let shape = describe();
        assert_eq!(shape["Errors"], Value::Null, "{shape}");
        for (part, field) in [("Memory", "total"), ("Host", "bootTime"), ("Disk", "total")] {
            assert!(shape[part][field].as_u64().is_some_and(|value| value > 0), "{part} {field}: {shape}");
        }
        assert!(shape["CPU"].as_array().is_some_and(|cpus| !cpus.is_empty()), "{shape}");
    }
}
