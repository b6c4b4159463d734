package main

import (
	"bufio"
	"context"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/coder/websocket"
)

// One message with all that applications set, to and fro.
func send(scene *Scene) map[string]any {
	text := func(value string) *string { return &value }
	lives := time.Hour
	check(scene.sender(scene.name).SendMessage(scene, &azservicebus.Message{
		Body: []byte("Zug \U0001f682"), MessageID: text("id"), CorrelationID: text("correlation"), Subject: text("subject"),
		ContentType: text("text/plain"), ReplyTo: text("reply"), To: text("to"), TimeToLive: &lives,
		ApplicationProperties: map[string]any{"text": "value", "number": int64(7), "flag": true, "part": 0.5},
	}, nil))
	receiver := scene.receiver(scene.name)
	before := time.Now()
	message := scene.next(receiver)
	check(receiver.CompleteMessage(scene, message, nil))
	return map[string]any{
		"body": string(message.Body), "application": message.ApplicationProperties,
		"properties": []*string{
			&message.MessageID, message.CorrelationID, message.Subject, message.ContentType, message.ReplyTo, message.To,
		},
		"ttl": message.TimeToLive.Seconds(), "sequence": message.SequenceNumber, "count": message.DeliveryCount,
		"locked": message.LockedUntil.After(before), "token": message.LockToken != [16]byte{},
		"left": scene.left(receiver),
	}
}

// A batch of messages, taken by a receiver that settles nothing.
func batch(scene *Scene) map[string]any {
	sender := scene.sender(scene.name)
	made := must(sender.NewMessageBatch(scene, nil))
	for _, text := range []string{"one", "two", "three"} {
		check(made.AddMessage(&azservicebus.Message{Body: []byte(text)}, nil))
	}
	check(sender.SendMessageBatch(scene, made, nil))
	options := &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete}
	receiver := must(scene.client.NewReceiverForQueue(scene.name, options))
	return map[string]any{"bodies": texts(scene.received(receiver, 3)), "left": scene.left(receiver)}
}

// Completes, abandons and dead-letters, and reads the dead letter.
func settle(scene *Scene) map[string]any {
	scene.send(scene.name, "first", "second")
	receiver := scene.receiver(scene.name)
	check(receiver.CompleteMessage(scene, scene.next(receiver), nil))
	check(receiver.AbandonMessage(scene, scene.next(receiver), &azservicebus.AbandonMessageOptions{
		PropertiesToModify: map[string]any{"tried": "once"},
	}))
	again := scene.next(receiver)
	reason, description := "why", "weil es größer ist"
	check(receiver.DeadLetterMessage(scene, again, &azservicebus.DeadLetterOptions{
		Reason: &reason, ErrorDescription: &description, PropertiesToModify: map[string]any{"place": "yard"},
	}))
	letters := scene.deadLetters(scene.name)
	dead := scene.next(letters)
	check(letters.CompleteMessage(scene, dead, nil))
	return map[string]any{
		"again": []any{string(again.Body), again.DeliveryCount},
		"dead": []any{
			string(dead.Body), dead.MessageID, dead.DeadLetterReason, dead.DeadLetterErrorDescription, dead.DeadLetterSource,
		},
		"changed": []any{
			again.ApplicationProperties["tried"], dead.ApplicationProperties["tried"], dead.ApplicationProperties["place"],
		},
		"left": []int{scene.left(receiver), scene.left(letters)},
	}
}

// Renews a lock, and one that is no longer there.
func renew(scene *Scene) map[string]any {
	scene.send(scene.name, "one")
	receiver := scene.receiver(scene.name)
	message := scene.next(receiver)
	before := *message.LockedUntil
	check(receiver.RenewMessageLock(scene, message, nil))
	renewed := !message.LockedUntil.Before(before) && message.LockedUntil.After(time.Now())
	check(receiver.CompleteMessage(scene, message, nil))
	return map[string]any{"renewed": renewed, "lost": why(receiver.RenewMessageLock(scene, message, nil))}
}

// Completes a message whose lock has ended: another receiver has it.
func lost(scene *Scene) map[string]any {
	scene.send(scene.name, "one")
	receiver, other := scene.receiver(scene.name), scene.receiver(scene.name)
	message := scene.next(receiver)
	again := scene.next(other)
	code := why(receiver.CompleteMessage(scene, message, nil))
	check(other.CompleteMessage(scene, again, nil))
	return map[string]any{"again": string(again.Body), "lost": code, "left": scene.left(receiver)}
}

// Peeks from the start, further, and from a number.
func peek(scene *Scene) map[string]any {
	scene.send(scene.name, "one", "two", "three")
	receiver := scene.receiver(scene.name)
	first := must(receiver.PeekMessages(scene, 2, nil))
	rest := must(receiver.PeekMessages(scene, 2, nil))
	number := int64(2)
	from := must(receiver.PeekMessages(scene, 1, &azservicebus.PeekMessagesOptions{FromSequenceNumber: &number}))
	return map[string]any{
		"first": texts(first), "rest": texts(rest), "from": []any{texts(from), from[0].SequenceNumber},
		"left": scene.left(receiver),
	}
}

// Schedules and cancels; a message that is sent with a time comes at it.
func schedule(scene *Scene) map[string]any {
	sender, receiver := scene.sender(scene.name), scene.receiver(scene.name)
	later := []*azservicebus.Message{{Body: []byte("one")}, {Body: []byte("two")}}
	numbers := must(sender.ScheduleMessages(scene, later, time.Now().Add(time.Hour), nil))
	peeked := must(receiver.PeekMessages(scene, 1, nil))[0]
	check(sender.CancelScheduledMessages(scene, numbers, nil))
	refused := sender.CancelScheduledMessages(scene, numbers, nil)
	soon := time.Now().Add(500 * time.Millisecond)
	check(sender.SendMessage(scene, &azservicebus.Message{Body: []byte("soon"), ScheduledEnqueueTime: &soon}, nil))
	came := scene.next(receiver)
	return map[string]any{
		"numbers": numbers, "peeked": string(peeked.Body), "scheduled": peeked.State == azservicebus.MessageStateScheduled,
		"twice": strings.Contains(refused.Error(), "not scheduled"),
		"came":  string(came.Body), "early": time.Now().Before(soon),
	}
}

// A message for a topic, and the dead letters of a subscription.
func topic(scene *Scene) map[string]any {
	scene.send(scene.name, "for all")
	receiver := must(scene.client.NewReceiverForSubscription(scene.name, "mine", nil))
	message := scene.next(receiver)
	check(receiver.DeadLetterMessage(scene, message, nil))
	options := &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}
	letters := must(scene.client.NewReceiverForSubscription(scene.name, "mine", options))
	return map[string]any{"body": string(message.Body), "dead": string(scene.next(letters).Body)}
}

// A user who may only receive sends; a key that is none.
func refused(scene *Scene) map[string]any {
	text := &azservicebus.Message{Body: []byte("x")}
	send := func(connectionString string) string {
		client := open(connectionString, azservicebus.ClientOptions{})
		defer client.Close(scene)
		return why(must(client.NewSender(scene.name, nil)).SendMessage(scene, text, nil))
	}
	wrong := strings.Replace(scene.connectionString, "SharedAccessKey=", "SharedAccessKey=x", 1)
	return map[string]any{"right": send(scene.other), "key": send(wrong)}
}

// There and back over a WebSocket, over TLS.
func overWebSocket(scene *Scene) map[string]any {
	dial := func(ctx context.Context, args azservicebus.NewWebSocketConnArgs) (net.Conn, error) {
		socket, _, err := websocket.Dial(ctx, args.Host, &websocket.DialOptions{Subprotocols: []string{"amqp"}})
		if err != nil {
			return nil, err
		}
		return websocket.NetConn(context.WithoutCancel(ctx), socket, websocket.MessageBinary), nil
	}
	client := open(scene.secure, azservicebus.ClientOptions{NewWebSocketConn: dial})
	check(must(client.NewSender(scene.name, nil)).SendMessage(scene, &azservicebus.Message{Body: []byte("x")}, nil))
	receiver := must(client.NewReceiverForQueue(scene.name, nil))
	message := scene.next(receiver)
	check(receiver.CompleteMessage(scene, message, nil))
	return map[string]any{"body": string(message.Body)}
}

// A message that is deferred is received by its number alone, and once.
func deferred(scene *Scene) map[string]any {
	scene.send(scene.name, "one", "two")
	receiver := scene.receiver(scene.name)
	found := scene.received(receiver, 2)
	check(receiver.DeferMessage(scene, found[0], nil))
	check(receiver.CompleteMessage(scene, found[1], nil))
	before := scene.left(receiver)
	numbers := []int64{*found[0].SequenceNumber}
	back := must(receiver.ReceiveDeferredMessages(scene, numbers, nil))[0]
	check(receiver.CompleteMessage(scene, back, nil))
	_, twice := receiver.ReceiveDeferredMessages(scene, numbers, nil)
	return map[string]any{
		"back": string(back.Body), "deferred": back.State == azservicebus.MessageStateDeferred,
		"twice": strings.Contains(twice.Error(), "that are deferred"), "left": []int{before, scene.left(receiver)},
	}
}

// Of messages with one id the first is stored.
func duplicates(scene *Scene) map[string]any {
	sender := scene.sender(scene.name)
	for _, each := range [][]string{{"a", "one"}, {"a", "two"}, {"b", "three"}} {
		check(sender.SendMessage(scene, &azservicebus.Message{Body: []byte(each[1]), MessageID: &each[0]}, nil))
	}
	options := &azservicebus.ReceiverOptions{ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete}
	receiver := must(scene.client.NewReceiverForQueue(scene.name, options))
	return map[string]any{"bodies": texts(scene.received(receiver, 2)), "left": scene.left(receiver)}
}

// Sends and receives on the same objects while the broker is killed and started again.
func restart(scene *Scene) map[string]any {
	retries := azservicebus.RetryOptions{MaxRetries: 20, RetryDelay: 500 * time.Millisecond, MaxRetryDelay: 2 * time.Second}
	client := must(azservicebus.NewClientFromConnectionString(
		scene.connectionString, &azservicebus.ClientOptions{RetryOptions: retries}))
	sender := must(client.NewSender(scene.name, nil))
	receiver := must(client.NewReceiverForQueue(scene.name, nil))
	found := map[int]bool{}
	receive := func() {
		messages, err := receiver.ReceiveMessages(scene, 10, nil)
		if err != nil {
			return
		}
		for _, message := range messages {
			if receiver.CompleteMessage(scene, message, nil) == nil {
				found[must(strconv.Atoi(string(message.Body)))] = true
			}
		}
	}
	send := func(number int) {
		check(sender.SendMessage(scene, &azservicebus.Message{Body: []byte(strconv.Itoa(number))}, nil))
	}
	for number := range 10 {
		send(number)
	}
	for len(found) < 5 {
		receive()
	}
	show("restart", "half")
	must(bufio.NewReader(os.Stdin).ReadString('\n'))
	for number := 10; number < 20; number++ {
		send(number)
	}
	// A message whose completion was lost with the broker comes again.
	for len(found) < 20 {
		check(scene.Err())
		receive()
	}
	check(client.Close(scene))
	return map[string]any{"bodies": slices.Sorted(maps.Keys(found))}
}

// Accepts a session by its id, and the next one that is available; sets its state.
func session(scene *Scene) map[string]any {
	sender := scene.sender(scene.name)
	for _, text := range []string{"a1", "b1", "a2"} {
		session := text[:1]
		check(sender.SendMessage(scene, &azservicebus.Message{Body: []byte(text), SessionID: &session}, nil))
	}
	first := must(scene.client.AcceptNextSessionForQueue(scene, scene.name, nil))
	_, busy := scene.client.AcceptSessionForQueue(scene, scene.name, "a", nil)
	found := []string{}
	for len(found) < 2 {
		for _, message := range must(first.ReceiveMessages(scene, 2, nil)) {
			found = append(found, string(message.Body))
			check(first.CompleteMessage(scene, message, nil))
		}
	}
	none := must(first.GetSessionState(scene, nil))
	check(first.SetSessionState(scene, []byte("state"), nil))
	before := first.LockedUntil()
	check(first.RenewSessionLock(scene, nil))
	renewed := !first.LockedUntil().Before(before) && first.LockedUntil().After(time.Now())
	second := must(scene.client.AcceptSessionForQueue(scene, scene.name, "b", nil))
	soon, cancel := context.WithTimeout(scene, 2*time.Second)
	defer cancel()
	_, nothing := scene.client.AcceptNextSessionForQueue(soon, scene.name, nil)
	listed := must(scene.client.NewListSessionsForQueuePager(scene.name, nil).NextPage(scene)).Sessions
	state := string(must(first.GetSessionState(scene, nil)))
	check(first.SetSessionState(scene, nil, nil))
	cleared := must(first.GetSessionState(scene, nil)) == nil
	check(first.Close(scene))
	check(second.Close(scene))
	return map[string]any{
		"sessions": []string{first.SessionID(), second.SessionID()}, "bodies": found,
		"busy":  strings.Contains(busy.Error(), "session-cannot-be-locked"),
		"state": []any{len(none), state}, "renewed": renewed, "none": why(nothing), "listed": listed,
		"cleared": cleared,
	}
}
