//! The ids by which providers know an email: the one in its row and, for the few that have more, `provider_messages`.

use model::EmailId;
use sqlx::{MySql, MySqlConnection, QueryBuilder};

use crate::error::Fault;
use crate::row::{parsed, portions};

const FIND: &str = "SELECT id FROM (
         (SELECT id FROM email_outbox FORCE INDEX (outbox_by_message)
          WHERE provider_message_id = ? ORDER BY id DESC LIMIT 1)
         UNION ALL
         (SELECT email_id FROM provider_messages FORCE INDEX (provider_messages_by_id)
          WHERE message_id = ? ORDER BY email_id DESC LIMIT 1)
     ) AS either ORDER BY id DESC LIMIT 1";

/// The newest email that has the id.
pub async fn find(connection: &mut MySqlConnection, message_id: &str) -> Result<Option<EmailId>, Fault> {
    let row = sqlx::query(FIND).bind(message_id).bind(message_id).fetch_optional(connection).await?;
    Ok(row.map(|row| parsed(&row, "id")).transpose()?)
}

/// Keeps ids that are not to stand in their rows.
pub async fn keep(connection: &mut MySqlConnection, messages: &[(EmailId, String)]) -> Result<(), Fault> {
    for messages in portions(messages) {
        let mut sql = QueryBuilder::<MySql>::new("INSERT INTO provider_messages (message_id, email_id) ");
        sql.push_values(messages, |mut row, (id, message_id)| {
            row.push_bind(message_id).push_bind(id.to_string());
        });
        sql.build().execute(&mut *connection).await?;
    }
    Ok(())
}

/// The same for one that may have been kept before. The email is locked.
pub async fn keep_once(connection: &mut MySqlConnection, id: EmailId, message_id: &str) -> Result<(), Fault> {
    let sql = "SELECT seq FROM provider_messages WHERE email_id = ? AND message_id = ? LIMIT 1";
    let known = sqlx::query(sql).bind(id.to_string()).bind(message_id).fetch_optional(&mut *connection);
    if known.await?.is_none() {
        keep(connection, &[(id, message_id.to_owned())]).await?;
    }
    Ok(())
}
