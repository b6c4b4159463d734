//! One function for each scenario; the names are those of test_fe2o3_amqp.py.

use std::time::Duration;

use fe2o3_amqp::link::receiver::CreditMode;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::transaction::{
    Controller, Transaction, TransactionAcquisition, TransactionDischarge, TransactionPosting, TransactionRetirement,
};
use fe2o3_amqp::types::definitions::{AmqpError, Error, SenderSettleMode};
use fe2o3_amqp::types::messaging::{Body, Header, Message, Modified, Target, TerminusExpiryPolicy};
use fe2o3_amqp::types::primitives::{Array, OrderedMap, Symbol, Timestamp, Uuid, Value};
use fe2o3_amqp::{Connection, Receiver, Sender};
use serde_json::json;

use crate::{Failure, Found, Scene, message, take, value};

fn numbers(found: &[Value]) -> Vec<i64> {
    found
        .iter()
        .map(|each| if let Value::Long(number) = each { *number } else { -1 })
        .collect()
}

/// Sends numbers without waiting between them.
async fn send_numbers(sender: &mut Sender, count: i64, durable: bool) -> Result<(), Failure> {
    let mut outcomes = Vec::new();
    for number in 0..count {
        let mut sent = message(number);
        sent.header = Some(Header {
            durable,
            ..Default::default()
        });
        outcomes.push(sender.send_batchable(sent).await?);
    }
    for outcome in outcomes {
        outcome
            .await?
            .accepted_or_else(|other| format!("expected accepted, found {other:?}"))?;
    }
    Ok(())
}

/// A thousand messages there and back, durable or not.
pub async fn order(scene: &mut Scene) -> Found {
    let mut sender = scene.sender().await?;
    let mut receiver = scene.receiver("receiver").await?;
    let mut found = Vec::new();
    for durable in [false, true] {
        send_numbers(&mut sender, 1_000, durable).await?;
        found.push(numbers(&take(&mut receiver, 1_000).await?));
    }
    Ok(json!({ "bodies": found }))
}

fn values() -> Vec<Value> {
    let map: OrderedMap<Value, Value> = [(Value::from("a"), Value::Long(1))].into_iter().collect();
    vec![
        Value::Null,
        Value::Bool(true),
        Value::Ubyte(255),
        Value::Ushort(65_535),
        Value::Uint(0),
        Value::Uint(u32::MAX),
        Value::Ulong(200),
        Value::Ulong(1 << 40),
        Value::Byte(-128),
        Value::Short(i16::MIN),
        Value::Int(i32::MIN),
        Value::Long(i64::MIN),
        Value::Float(0.5.into()),
        Value::Double(3.25.into()),
        Value::Char('\u{1f682}'),
        Value::Timestamp(Timestamp::from_milliseconds(1_700_000_000_123)),
        Value::Uuid(Uuid::from([7; 16])),
        Value::Binary(vec![0, 1, 255].into()),
        Value::String("Zug \u{1f682}".into()),
        Value::Symbol(Symbol::from("amqp:accepted:list")),
        Value::List(vec![Value::Ubyte(1), Value::Null, Value::List(vec![Value::from("x")])]),
        Value::Map(map),
        Value::Array(Array::from(vec![Value::Int(1), Value::Int(-2)])),
    ]
}

/// Every type as a body; gives what arrives otherwise than it was sent.
pub async fn types(scene: &mut Scene) -> Found {
    let mut sender = scene.sender().await?;
    let mut receiver = scene.receiver("receiver").await?;
    let mut changed = Vec::new();
    for sent in values() {
        sender.send(message(sent.clone())).await?.accepted_or("not accepted")?;
        let came = take(&mut receiver, 1).await?.remove(0);
        if came != sent {
            changed.push(format!("sent {sent:?}, came {came:?}"));
        }
    }
    Ok(json!({ "count": values().len(), "changed": changed }))
}

/// One large message there and back, and a small one after it.
pub async fn large(scene: &mut Scene) -> Found {
    let content = b"0123456789abcdef".repeat(4 << 16);
    let mut sender = scene.sender().await?;
    sender
        .send(message(Value::Binary(content.clone().into())))
        .await?
        .accepted_or("not accepted")?;
    sender.send(message("after")).await?.accepted_or("not accepted")?;
    let mut receiver = scene.receiver("receiver").await?;
    let found = take(&mut receiver, 2).await?;
    Ok(json!({ "equal": found[0] == Value::Binary(content.into()), "after": found[1] == Value::from("after") }))
}

/// Every outcome once; what comes next each time, and what the dead-letter queue has in the end.
pub async fn outcomes(scene: &mut Scene) -> Found {
    scene
        .sender()
        .await?
        .send(message("m"))
        .await?
        .accepted_or("not accepted")?;
    let mut receiver = scene.receiver("receiver").await?;
    let mut counts = Vec::new();
    for turn in 0..3 {
        let delivery = receiver.recv::<Body<Value>>().await?;
        counts.push(
            delivery
                .message()
                .header
                .as_ref()
                .map_or(0, |header| header.delivery_count),
        );
        match turn {
            0 => receiver.release(&delivery).await?,
            1 => {
                let failed = Modified {
                    delivery_failed: Some(true),
                    undeliverable_here: None,
                    message_annotations: None,
                };
                receiver.modify(&delivery, failed).await?;
            }
            _ => {
                receiver
                    .reject(&delivery, Error::new(AmqpError::PreconditionFailed, None, None))
                    .await?
            }
        }
    }
    let dead = format!("{}/$dlq", scene.name);
    let mut letters = Receiver::attach(&mut scene.session, "letters", dead).await?;
    let dead = take(&mut letters, 1).await?;
    Ok(json!({ "counts": counts, "dead": dead[0] == Value::from("m") }))
}

/// Settled when sent, both ways.
pub async fn presettled(scene: &mut Scene) -> Found {
    let settled = SenderSettleMode::Settled;
    let name = scene.name.clone();
    let mut sender = Sender::builder()
        .name("sender")
        .target(name.as_str())
        .sender_settle_mode(settled.clone())
        .attach(&mut scene.session)
        .await?;
    for number in 0..200_i64 {
        sender.send(message(number)).await?.accepted_or("not accepted")?;
    }
    let mut receiver = Receiver::builder()
        .name("receiver")
        .source(name.as_str())
        .sender_settle_mode(settled)
        .attach(&mut scene.session)
        .await?;
    let mut found = Vec::new();
    while found.len() < 200 {
        found.push(value(&receiver.recv::<Body<Value>>().await?)?.clone());
    }
    Ok(json!({ "bodies": numbers(&found) }))
}

/// Credit by hand: no more messages come than that.
pub async fn credit(scene: &mut Scene) -> Found {
    send_numbers(&mut scene.sender().await?, 5, false).await?;
    let name = scene.name.clone();
    let mut receiver = Receiver::builder()
        .name("receiver")
        .source(name)
        .credit_mode(CreditMode::Manual)
        .attach(&mut scene.session)
        .await?;
    receiver.set_credit(3).await?;
    let mut found = take(&mut receiver, 3).await?;
    receiver.drain().await?;
    receiver.set_credit(100).await?;
    found.extend(take(&mut receiver, 2).await?);
    Ok(json!({ "bodies": numbers(&found) }))
}

/// What is sent and accepted in a transaction takes effect with its commit, and not with its rollback.
pub async fn transaction(scene: &mut Scene) -> Found {
    let controller = Controller::attach(&mut scene.session, "controller").await?;
    let mut sender = scene.sender().await?;
    let mut receiver = scene.receiver("receiver").await?;
    let rolled = Transaction::declare(&controller, None).await?;
    rolled.post(&mut sender, message("never")).await?;
    rolled.rollback().await?;
    let committed = Transaction::declare(&controller, None).await?;
    for text in ["one", "two"] {
        committed.post(&mut sender, message(text)).await?;
    }
    committed.commit().await?;
    let first = receiver.recv::<Body<Value>>().await?;
    let retiring = Transaction::declare(&controller, None).await?;
    retiring.accept(&mut receiver, &first).await?;
    retiring.commit().await?;
    let rest = take(&mut receiver, 1).await?;
    controller.close().await?;
    Ok(json!({ "bodies": [format!("{:?}", value(&first)?), format!("{:?}", rest[0])] }))
}

/// What is acquired in a transaction is accepted with its commit, and comes again after its rollback.
pub async fn acquire(scene: &mut Scene) -> Found {
    let controller = Controller::attach(&mut scene.session, "controller").await?;
    send_numbers(&mut scene.sender().await?, 4, false).await?;
    let name = scene.name.clone();
    let mut receiver = Receiver::builder()
        .name("receiver")
        .source(name)
        .credit_mode(CreditMode::Manual)
        .attach(&mut scene.session)
        .await?;
    let mut found = Vec::new();
    let rolled = Transaction::declare(&controller, None).await?;
    let mut acquisition = rolled.acquire(&mut receiver, 2).await?;
    for _ in 0..2 {
        found.push(value(&acquisition.recv::<Body<Value>>().await?)?.clone());
    }
    acquisition.rollback().await?;
    let committed = Transaction::declare(&controller, None).await?;
    let mut acquisition = committed.acquire(&mut receiver, 3).await?;
    for _ in 0..3 {
        let delivery = acquisition.recv::<Body<Value>>().await?;
        acquisition.accept(&delivery).await?;
        found.push(value(&delivery)?.clone());
    }
    acquisition.commit().await?;
    receiver.set_credit(10).await?;
    found.extend(take(&mut receiver, 1).await?);
    controller.close().await?;
    Ok(json!({ "bodies": numbers(&found) }))
}

/// A link on which the client sends is detached, and resumed on another connection.
pub async fn resume(scene: &mut Scene) -> Found {
    let target = Target::builder()
        .address(scene.name.as_str())
        .expiry_policy(TerminusExpiryPolicy::Never)
        .timeout(60)
        .build();
    let mut first = scene.another("alice").await?;
    let mut sender = Sender::builder()
        .name("resumed")
        .target(target)
        .attach(&mut first.session)
        .await?;
    sender.send(message("one")).await?.accepted_or("not accepted")?;
    let detached = sender.detach().await.map_err(|(_, error)| error)?;
    first.close().await?;
    let mut second = scene.another("alice").await?;
    let mut sender = detached.resume_on_session(&second.session).await?;
    sender.send(message("two")).await?.accepted_or("not accepted")?;
    sender.close().await?;
    let found = take(&mut scene.receiver("receiver").await?, 2).await?;
    second.session.end().await?;
    second.connection.close().await?;
    Ok(json!({ "bodies": found.iter().map(|each| format!("{each:?}")).collect::<Vec<_>>() }))
}

/// Who enters: PLAIN with the right and a wrong password, nobody at all.
pub async fn enter(scene: &mut Scene) -> Found {
    let mut entered = Vec::new();
    for password in ["secret", "wrong"] {
        let url = format!("amqp://alice:{password}@{}", scene.address);
        entered.push(Connection::open("entering", url.as_str()).await.is_ok());
    }
    let url = format!("amqp://{}", scene.address);
    let nobody = Connection::builder()
        .container_id("nobody")
        .sasl_profile(SaslProfile::Anonymous)
        .open(url.as_str())
        .await;
    entered.push(nobody.is_ok());
    Ok(json!({ "entered": entered }))
}

/// A link that the broker refuses; its session goes on.
pub async fn detached(scene: &mut Scene) -> Found {
    let mut bob = scene.another("bob").await?;
    let refused = match bob.sender().await {
        Ok(_) => String::new(),
        Err(error) => format!("{error} {error:?}"),
    };
    let below = format!("bob/{}", scene.name);
    let mut sender = Sender::attach(&mut bob.session, "below", below).await?;
    sender
        .send(Message::from("x".to_string()))
        .await?
        .accepted_or("not accepted")?;
    tokio::time::timeout(Duration::from_secs(10), bob.close()).await??;
    Ok(json!({ "refused": refused }))
}
