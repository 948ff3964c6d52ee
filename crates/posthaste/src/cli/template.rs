//! `posthaste template push DIR|list|delete`: a company's templates from files. A template `welcome` is made of
//! `welcome.html` or `welcome.mjml`, `welcome.subject.txt` and, if you like, `welcome.text.txt`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use gateway::templates::encode;
use serde_json::json;
use template::{Source, Template};

use super::out::distance;
use super::{Session, Usage, company_named};

const NAME_LENGTH_MAX: usize = 64;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Check all templates of a folder, then write those that changed
    Push(PushArgs),
    /// List the templates of a company
    List {
        /// The company whose templates they are.
        #[arg(long, value_name = "NAME")]
        company: String,
    },
    /// Delete a template with all its versions
    Delete {
        /// The company whose template it is.
        #[arg(long, value_name = "NAME")]
        company: String,
        /// The template's name.
        template: String,
    },
}

#[derive(Debug, clap::Args)]
pub struct PushArgs {
    /// The company whose templates they are.
    #[arg(long, value_name = "NAME")]
    company: String,
    /// The folder: NAME.html or NAME.mjml, NAME.subject.txt and NAME.text.txt each.
    directory: PathBuf,
    /// Check only, write nothing.
    #[arg(long)]
    dry_run: bool,
}

pub async fn run(session: &Session, command: Command) -> anyhow::Result<()> {
    match command {
        Command::Push(args) => push(session, &args).await,
        Command::List { company } => list(session, &company).await,
        Command::Delete { company, template } => delete(session, &company, &template).await,
    }
}

async fn push(session: &Session, args: &PushArgs) -> anyhow::Result<()> {
    let sources = read(&args.directory)?;
    check(&sources)?;
    let store = session.store().await?;
    let company = company_named(&*store, &args.company).await?;
    let mut rows = Vec::new();
    for (name, source) in &sources {
        let known = store.template(company.id, name, None).await?;
        let encoded = encode(source);
        let is_same = known.as_ref().is_some_and(|known| known.source == encoded);
        let (version, what) = match known {
            Some(known) if is_same => (known.version, "unchanged"),
            known if args.dry_run => (known.map_or(0, |known| known.version) + 1, "would be written"),
            _ => (store.put_template(company.id, name, &encoded, session.now()).await?, "written"),
        };
        if session.out.is_json() {
            session.out.json(&json!({ "name": name, "version": version, "result": what }))?;
        }
        rows.push(vec![name.clone(), version.to_string(), what.to_owned()]);
    }
    store.close().await;
    if !session.out.is_json() {
        session.out.table(&["TEMPLATE", "VERSION", "RESULT"], &rows)?;
    }
    Ok(())
}

/// The templates of a folder, by name.
fn read(directory: &Path) -> anyhow::Result<BTreeMap<String, Source>> {
    let cannot = || format!("cannot read the folder {}", directory.display());
    let mut sources: BTreeMap<String, Source> = BTreeMap::new();
    for entry in std::fs::read_dir(directory).with_context(cannot)? {
        let path = entry.with_context(cannot)?.path();
        let Some(file) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let parts = [".subject.txt", ".text.txt", ".html", ".mjml"];
        let Some((name, part)) = parts.iter().find_map(|part| Some((file.strip_suffix(part)?, *part))) else {
            continue;
        };
        if !is_name(name) {
            bail!(Usage(format!("{file}: a template's name has 1 to {NAME_LENGTH_MAX} of a-z, 0-9 and -")));
        }
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let source = sources.entry(name.to_owned()).or_default();
        match part {
            ".subject.txt" => source.subject = text.trim_end().to_owned(),
            ".text.txt" => source.text = Some(text),
            ".html" => source.html = Some(text),
            _ => source.mjml = Some(text),
        }
    }
    if sources.is_empty() {
        bail!(Usage(format!(
            "{} holds no templates; a template is NAME.html (or NAME.mjml) and NAME.subject.txt",
            directory.display()
        )));
    }
    Ok(sources)
}

fn is_name(name: &str) -> bool {
    (1..=NAME_LENGTH_MAX).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// All problems of all templates at once; with one, nothing is written.
fn check(sources: &BTreeMap<String, Source>) -> anyhow::Result<()> {
    let mut problems = Vec::new();
    for (name, source) in sources {
        if let Err(found) = Template::compile(source) {
            problems.extend(found.into_iter().map(|problem| format!("{name}: {problem}")));
        }
    }
    if !problems.is_empty() {
        bail!("nothing was written:\n{}", problems.join("\n"));
    }
    Ok(())
}

async fn list(session: &Session, company: &str) -> anyhow::Result<()> {
    let store = session.store().await?;
    let company = company_named(&*store, company).await?;
    let templates = store.templates(company.id).await?;
    store.close().await;
    let now = session.now();
    if session.out.is_json() {
        for template in &templates {
            session.out.json(&json!({
                "name": template.name, "version": template.version, "createdAt": template.created_at.to_string(),
            }))?;
        }
        return Ok(());
    }
    let rows: Vec<Vec<String>> = templates
        .iter()
        .map(|template| {
            vec![template.name.clone(), template.version.to_string(), distance(template.created_at, now)]
        })
        .collect();
    session.out.table(&["TEMPLATE", "VERSION", "SINCE"], &rows)?;
    Ok(())
}

async fn delete(session: &Session, company: &str, template: &str) -> anyhow::Result<()> {
    let store = session.store().await?;
    let company = company_named(&*store, company).await?;
    let deleted = store.delete_template(company.id, template).await?;
    store.close().await;
    if !deleted {
        bail!("the company {} has no template {template:?}", company.name);
    }
    session.out.result(&json!({ "name": template, "deleted": true }), format!("{template} deleted"))?;
    Ok(())
}
