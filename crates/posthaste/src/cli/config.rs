//! `posthaste config`: what is in force, where it came from, secrets as `***`.

use serde_json::json;

use super::Session;
use crate::config::show;

pub fn run(session: &Session) -> anyhow::Result<()> {
    let lines = show::lines(&session.loaded.entries);
    if session.out.is_json() {
        for line in lines {
            session.out.json(&json!({ "key": line.key, "value": line.value, "origin": line.origin }))?;
        }
        return Ok(());
    }
    let rows: Vec<Vec<String>> = lines
        .into_iter()
        .map(|line| {
            let (mark, value) = line.value.map_or(("# ", String::new()), |value| ("", value));
            vec![format!("{mark}{} = {value}", line.key), format!("# {}", line.origin)]
        })
        .collect();
    session.out.table(&[], &rows)?;
    Ok(())
}
