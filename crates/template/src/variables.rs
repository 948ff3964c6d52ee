//! The variables as the engine sees them, and the ones it asked for in vain.
//!
//! The engine's own strict mode stops at the first missing variable. Here a missing one is an object instead, which
//! notes its path when it is used, prints nothing, and lets the rendering go on: so all that this rendering needs are
//! found together. What is looked at through `is defined` or `default` is let go again, and what stands in a branch
//! that is not taken is never asked for: neither is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use minijinja::value::{Enumerator, Object, ObjectExt, ObjectRepr, Value};
use minijinja::{Error, ErrorKind, State};

/// What was asked for in vain during one rendering.
#[derive(Default)]
pub(crate) struct Absent {
    notes: Mutex<Notes>,
    /// Paths that stand in as a number, since an earlier try stopped at calculating with them.
    stand_ins: BTreeSet<String>,
}

#[derive(Default)]
struct Notes {
    /// Printed, looped over or asked whether true.
    used: BTreeSet<String>,
    /// Looked up and not let go. Comparing and calculating leave no other trace.
    held: BTreeMap<String, usize>,
}

impl Absent {
    /// For another try, in which these paths are numbers.
    pub fn with_stand_ins(stand_ins: BTreeSet<String>) -> Arc<Self> {
        Arc::new(Self { notes: Mutex::default(), stand_ins })
    }

    pub fn used(&self) -> BTreeSet<String> {
        self.notes().used.clone()
    }

    pub fn held(&self) -> BTreeSet<String> {
        self.notes().held.keys().cloned().collect()
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        // Nothing in here panics while it holds the lock; notes are whole even if it did.
        self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn missing(self: &Arc<Self>, path: String) -> Value {
        if self.stand_ins.contains(&path) {
            return Value::from(0);
        }
        *self.notes().held.entry(path.clone()).or_default() += 1;
        Value::from_object(Missing { path, absent: Some(self.clone()) })
    }

    fn let_go(&self, path: &str) {
        let held = &mut self.notes().held;
        if let Some(count) = held.get_mut(path) {
            *count -= 1;
            if *count == 0 {
                held.remove(path);
            }
        }
    }
}

/// All variables, for the engine. `is_global` names what the engine itself has: functions such as `range`.
pub(crate) fn root(
    variables: &serde_json::Map<String, serde_json::Value>,
    absent: &Arc<Absent>,
    is_global: impl Fn(&str) -> bool + Send + Sync + 'static,
) -> Value {
    let entries = variables.iter().map(|(name, value)| (name.clone(), wrap(value, name, absent))).collect();
    Value::from_object(Root { entries, absent: absent.clone(), is_global: Box::new(is_global) })
}

fn wrap(value: &serde_json::Value, path: &str, absent: &Arc<Absent>) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::from(()),
        Json::Bool(yes) => Value::from(*yes),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), _, _) => Value::from(number),
            (_, Some(number), _) => Value::from(number),
            (_, _, Some(number)) => Value::from(number),
            _ => Value::from(number.to_string()),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => {
            items.iter().enumerate().map(|(at, item)| wrap(item, &format!("{path}[{at}]"), absent)).collect()
        }
        Json::Object(entries) => Value::from_object(Entries {
            entries: entries
                .iter()
                .map(|(name, value)| (name.clone(), wrap(value, &format!("{path}.{name}"), absent)))
                .collect(),
            path: path.to_owned(),
            absent: absent.clone(),
        }),
    }
}

struct Root {
    entries: BTreeMap<String, Value>,
    absent: Arc<Absent>,
    is_global: Box<dyn Fn(&str) -> bool + Send + Sync>,
}

impl Object for Root {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.entries.get(key.as_str()?).cloned()
    }

    fn get_value_by_str(self: &Arc<Self>, name: &str) -> Option<Value> {
        match self.entries.get(name) {
            Some(value) => Some(value.clone()),
            None if (self.is_global)(name) => None,
            None => Some(self.absent.missing(name.to_owned())),
        }
    }
}

/// Names only: values are somebody's.
impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries.keys()).finish()
    }
}

/// An object among the variables. Found by attribute (`order.note`), an absent entry is a missing variable; found by
/// key it is plainly not there, since the engine asks `'note' in order` by key too.
struct Entries {
    entries: BTreeMap<String, Value>,
    path: String,
    absent: Arc<Absent>,
}

impl Object for Entries {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.entries.get(key.as_str()?).cloned()
    }

    fn get_value_by_str(self: &Arc<Self>, name: &str) -> Option<Value> {
        let entry = self.entries.get(name).cloned();
        entry.or_else(|| Some(self.absent.missing(format!("{}.{name}", self.path))))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| Box::new(this.entries.keys().map(|name| Value::from(name.as_str()))))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.entries.len())
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.entries.iter()).finish()
    }
}

/// A variable that was not given.
struct Missing {
    path: String,
    /// None for the one turn of a loop over something missing: the list is reported, what it would hold is not known.
    absent: Option<Arc<Absent>>,
}

impl Missing {
    /// What something missing would hold.
    fn entry() -> Value {
        Value::from_object(Missing { path: String::new(), absent: None })
    }

    fn note_use(&self) {
        if let Some(absent) = &self.absent {
            absent.notes().used.insert(self.path.clone());
        }
    }

    fn let_go(&self) {
        if let Some(absent) = &self.absent {
            absent.let_go(&self.path);
        }
    }
}

impl Object for Missing {
    /// `missing['key']` and `'key' in missing`; asked for its one entry, it has that.
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.note_use();
        key.downcast_object_ref::<Missing>().map(|_| Missing::entry())
    }

    /// `missing.key`: only the whole path is of interest, and only if it is used.
    fn get_value_by_str(self: &Arc<Self>, name: &str) -> Option<Value> {
        let Some(absent) = &self.absent else {
            return Some(Missing::entry());
        };
        self.let_go();
        Some(absent.missing(format!("{}.{name}", self.path)))
    }

    /// One turn, so that other variables inside of the loop are found too.
    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.note_use();
        Enumerator::Values(vec![Missing::entry()])
    }

    fn is_true(self: &Arc<Self>) -> bool {
        self.note_use();
        false
    }

    fn call(self: &Arc<Self>, _: &mut State<'_, '_>, _: &[Value]) -> Result<Value, Error> {
        self.let_go();
        Err(Error::new(ErrorKind::UnknownFunction, format!("{} is unknown", self.path)))
    }

    fn call_method(self: &Arc<Self>, _: &mut State<'_, '_>, _: &str, _: &[Value]) -> Result<Value, Error> {
        self.note_use();
        Err(Error::from(ErrorKind::UnknownMethod))
    }

    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Map
    }

    fn render(self: &Arc<Self>, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.note_use();
        Ok(())
    }
}

impl fmt::Debug for Missing {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.note_use();
        Ok(())
    }
}

/// Whether a value is a missing variable. If so it was looked at on purpose, and is let go.
pub(crate) fn guards(value: &Value) -> bool {
    match value.downcast_object_ref::<Missing>() {
        Some(missing) => {
            missing.let_go();
            true
        }
        None => value.is_undefined(),
    }
}

/// Whether a value is a missing variable, without a consequence.
pub(crate) fn is_missing(value: &Value) -> bool {
    value.is_undefined() || value.downcast_object_ref::<Missing>().is_some()
}
