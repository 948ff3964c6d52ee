//! Where an import comes from: lines of JSON (a file or standard input) or .eml files (one, or a folder of them). Read on a
//! thread of its own, a bounded number of bytes ahead of what is being handed in.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::cli::Usage;

/// What may be in memory at once, read and not yet handed in. One email at its largest has to fit.
const BYTES_AHEAD_MAX: usize = 64 * 1024 * 1024;
const KIB: usize = 1024;

pub enum Source {
    Lines { reader: Box<dyn BufRead + Send>, bytes: Option<u64> },
    File(PathBuf),
    Folder { path: PathBuf, files: u64 },
}

/// Where in the source an email stands, so that a person finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Line(u64),
    File(String),
}

impl Place {
    pub fn named(&self) -> (&'static str, Value) {
        match self {
            Self::Line(number) => ("line", json!(number)),
            Self::File(name) => ("file", json!(name)),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Line(number) => write!(f, "line {number}"),
            Self::File(name) => f.write_str(name),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Json,
    Eml,
}

/// One email as it stands there.
pub struct Item {
    pub place: Place,
    pub form: Form,
    pub body: Body,
    /// How far reading has come: bytes of lines, or files.
    pub behind: u64,
    _room: Option<OwnedSemaphorePermit>,
}

pub enum Body {
    Bytes(Vec<u8>),
    TooLarge,
    Unreadable(String),
}

impl Source {
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::Lines { reader: Box::new(BufReader::new(io::stdin())), bytes: None });
        }
        let metadata = std::fs::metadata(path)
            .map_err(|error| Usage(format!("cannot read {}: {error}", path.display())))?;
        if metadata.is_dir() {
            let files = emls(path)?.count() as u64;
            if files == 0 {
                bail!(Usage(format!("{} holds no .eml files", path.display())));
            }
            return Ok(Self::Folder { path: path.to_owned(), files });
        }
        if is_eml(path) {
            return Ok(Self::File(path.to_owned()));
        }
        let file =
            File::open(path).map_err(|error| Usage(format!("cannot read {}: {error}", path.display())))?;
        // What is no plain file, such as a pipe, has a length of nothing.
        let bytes = metadata.is_file().then_some(metadata.len());
        Ok(Self::Lines { reader: Box::new(BufReader::new(file)), bytes })
    }

    /// How many steps there are, counted as `Item::behind` counts them.
    pub fn total(&self) -> Option<u64> {
        match self {
            Self::Lines { bytes, .. } => *bytes,
            Self::File(_) => Some(1),
            Self::Folder { files, .. } => Some(*files),
        }
    }

    /// Sends every email, in order, until nobody listens any more. An error is that of the source itself.
    pub fn read(self, bytes_max: usize, items: mpsc::Sender<Item>) -> anyhow::Result<()> {
        let mut sender = Sender { items, room: Arc::new(Semaphore::new(BYTES_AHEAD_MAX / KIB)) };
        match self {
            Self::Lines { reader, .. } => read_lines(reader, bytes_max, &mut sender),
            Self::File(path) => {
                sender.send_file(&path, bytes_max, 1);
                Ok(())
            }
            Self::Folder { path, .. } => {
                for (index, file) in (1..).zip(emls(&path)?) {
                    if !sender.send_file(&file?, bytes_max, index) {
                        break;
                    }
                }
                Ok(())
            }
        }
    }
}

fn is_eml(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|ending| ending.eq_ignore_ascii_case("eml"))
}

fn emls(folder: &Path) -> anyhow::Result<impl Iterator<Item = anyhow::Result<PathBuf>>> {
    let cannot = format!("cannot read the folder {}", folder.display());
    let entries = std::fs::read_dir(folder).with_context(|| cannot.clone())?;
    let paths = entries
        .map(move |entry| -> anyhow::Result<PathBuf> { Ok(entry.with_context(|| cannot.clone())?.path()) });
    Ok(paths.filter(|path| path.as_ref().map_or(true, |path| is_eml(path))))
}

struct Sender {
    items: mpsc::Sender<Item>,
    room: Arc<Semaphore>,
}

impl Sender {
    /// `false` when nobody listens any more.
    fn send(&mut self, place: Place, form: Form, body: Body, behind: u64) -> bool {
        let size = if let Body::Bytes(bytes) = &body { bytes.len() } else { 0 };
        let kib = size.div_ceil(KIB).clamp(1, BYTES_AHEAD_MAX / KIB);
        let wish = u32::try_from(kib).unwrap_or(u32::MAX);
        let room = Handle::current().block_on(Arc::clone(&self.room).acquire_many_owned(wish)).ok();
        self.items.blocking_send(Item { place, form, body, behind, _room: room }).is_ok()
    }

    fn send_file(&mut self, path: &Path, bytes_max: usize, behind: u64) -> bool {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let body = match read_file(path, bytes_max) {
            Ok(Some(bytes)) => Body::Bytes(bytes),
            Ok(None) => Body::TooLarge,
            Err(error) => Body::Unreadable(error.to_string()),
        };
        self.send(Place::File(name), Form::Eml, body, behind)
    }
}

/// `None` when it is larger than that.
fn read_file(path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= bytes_max).then_some(bytes))
}

fn read_lines(
    mut reader: Box<dyn BufRead + Send>,
    bytes_max: usize,
    sender: &mut Sender,
) -> anyhow::Result<()> {
    let mut behind = 0;
    for number in 1.. {
        let Some((length, body)) = read_line(&mut reader, bytes_max).context("the input cannot be read")?
        else {
            return Ok(());
        };
        behind += length;
        let body = match body {
            Some(bytes) if bytes.trim_ascii().is_empty() => continue,
            Some(bytes) => Body::Bytes(bytes),
            None => Body::TooLarge,
        };
        if !sender.send(Place::Line(number), Form::Json, body, behind) {
            return Ok(());
        }
    }
    Ok(())
}

/// The length of the next line and its bytes, or none of them when there are too many; `None` at the end.
fn read_line(reader: &mut dyn BufRead, bytes_max: usize) -> io::Result<Option<(u64, Option<Vec<u8>>)>> {
    let mut line = Vec::new();
    let read = (&mut *reader).take(bytes_max as u64 + 1).read_until(b'\n', &mut line)?;
    if read == 0 {
        return Ok(None);
    }
    let read = read as u64;
    if line.len() > bytes_max && line.last() != Some(&b'\n') {
        drop(line);
        let skipped = reader.skip_until(b'\n')?;
        return Ok(Some((read + skipped as u64, None)));
    }
    // Some editors begin a text with this mark, which is no JSON.
    let bytes = line.strip_prefix(b"\xef\xbb\xbf").map(<[u8]>::to_vec).unwrap_or(line);
    Ok(Some((read, Some(bytes))))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Lengths and lines, those that are too long left out.
    type Lines = Vec<(u64, Option<String>)>;

    fn lines(text: &str, bytes_max: usize) -> Lines {
        let mut reader = BufReader::with_capacity(3, text.as_bytes());
        let mut lines = Vec::new();
        while let Some((length, bytes)) = read_line(&mut reader, bytes_max).expect("read") {
            lines.push((length, bytes.map(|bytes| String::from_utf8(bytes).expect("text"))));
        }
        lines
    }

    #[test]
    fn lines_are_read_one_by_one_and_the_long_are_skipped() {
        let some = |text: &str| Some(text.to_owned());
        let cases: &[(&str, Lines)] = &[
            ("", vec![]),
            ("a", vec![(1, some("a"))]),
            ("a\n", vec![(2, some("a\n"))]),
            ("a\n\nb", vec![(2, some("a\n")), (1, some("\n")), (1, some("b"))]),
            ("12345678\nb\n", vec![(9, some("12345678\n")), (2, some("b\n"))]),
            ("1234567890123\nb\n", vec![(14, None), (2, some("b\n"))]),
            ("1234567890123", vec![(13, None)]),
            ("\u{feff}a\n", vec![(5, some("a\n"))]),
        ];
        for (text, expected) in cases {
            assert_eq!(&lines(text, 8), expected, "{text:?}");
        }
    }

    proptest! {
        /// Whatever the bytes are and wherever reads end, every byte is counted, and no line is larger than it may be.
        #[test]
        fn any_bytes_are_lines(
            pieces in prop::collection::vec(prop_oneof![
                prop::collection::vec(any::<u8>(), 0..12),
                prop::sample::select(vec!["\n", "\r\n", "\u{feff}", "{}", "\n\n", "\0"]).prop_map(|text| text.as_bytes().to_vec()),
            ], 0..20),
            bytes_max in 1..20_usize,
            at_once in 1..7_usize,
        ) {
            let bytes = pieces.concat();
            let mut reader = BufReader::with_capacity(at_once, bytes.as_slice());
            let (mut start, mut count) = (0, 0);
            while let Some((length, line)) = read_line(&mut reader, bytes_max).expect("read") {
                let end = start + usize::try_from(length).expect("small");
                let whole = &bytes[start..end];
                let newline = whole.iter().position(|byte| *byte == b'\n');
                prop_assert!(newline.is_none_or(|at| at + 1 == whole.len()), "one line: {whole:?}");
                prop_assert!(newline.is_some() || end == bytes.len(), "a whole line: {whole:?}");
                match line {
                    Some(line) => {
                        prop_assert!(line.len() <= bytes_max + 1, "{line:?}");
                        prop_assert_eq!(line.as_slice(), whole.strip_prefix(b"\xef\xbb\xbf").unwrap_or(whole));
                    }
                    None => prop_assert!(whole.len() > bytes_max, "{whole:?}"),
                }
                (start, count) = (end, count + 1);
            }
            prop_assert_eq!(start, bytes.len(), "nothing is left out");
            prop_assert!(count <= bytes.len());
        }
    }

    #[test]
    fn a_source_is_told_by_what_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        assert!(Source::open(folder.path()).is_err(), "it holds nothing");
        std::fs::write(path("a.EML"), "x").expect("written");
        std::fs::write(path("b.eml"), "x").expect("written");
        std::fs::write(path("notes.txt"), "x").expect("written");
        assert_eq!(Source::open(folder.path()).expect("a folder").total(), Some(2));
        assert!(matches!(Source::open(&path("a.EML")), Ok(Source::File(_))));
        assert!(matches!(Source::open(&path("notes.txt")), Ok(Source::Lines { bytes: Some(1), .. })));
        assert!(Source::open(&path("missing")).is_err());
    }
}
