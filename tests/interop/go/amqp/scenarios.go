package main

import (
	"bytes"
	"crypto/tls"
	"time"

	"github.com/Azure/go-amqp"
)

// A thousand messages there and back, durable or not.
func order(scene *Scene) map[string]any {
	outcomes := scene.sendNumbers(1_000, false)
	receiver := scene.receiver(&amqp.ReceiverOptions{Credit: 100})
	plain := scene.take(receiver, 1_000)
	outcomes = append(outcomes, scene.sendNumbers(1_000, true)...)
	return map[string]any{"bodies": [][]any{plain, scene.take(receiver, 1_000)}, "outcomes": outcomes}
}

// One large message there and back, and a small one after it.
func large(scene *Scene) map[string]any {
	content := bytes.Repeat([]byte("0123456789abcdef"), 20<<16)
	outcomes := scene.send(scene.sender(nil), amqp.NewMessage(content), value("after"))
	receiver := scene.receiver(nil)
	first := scene.next(receiver)
	check(receiver.AcceptMessage(scene, first))
	return map[string]any{
		"outcomes": outcomes, "equal": bytes.Equal(first.GetData(), content), "after": scene.take(receiver, 1),
	}
}

// Every outcome once; what comes next each time, and what the dead-letter queue has in the end.
func outcomes(scene *Scene) map[string]any {
	message := value("m")
	message.Annotations = amqp.Annotations{"x-opt-mine": int64(1)}
	scene.send(scene.sender(nil), message)
	receiver := scene.receiver(nil)
	seen := [][]any{}
	next := func() *amqp.Message {
		found := scene.next(receiver)
		count := deliveryCount(found)
		notes := map[string]any{}
		for key, note := range found.Annotations {
			notes[key.(string)] = note
		}
		seen = append(seen, []any{found.Value, count, notes})
		return found
	}
	check(receiver.ReleaseMessage(scene, next()))
	check(receiver.ModifyMessage(scene, next(), &amqp.ModifyMessageOptions{DeliveryFailed: true}))
	more := &amqp.ModifyMessageOptions{Annotations: amqp.Annotations{"x-opt-more": "new"}}
	check(receiver.ModifyMessage(scene, next(), more))
	reason := &amqp.Error{Condition: "example:bad", Description: "not like this"}
	check(receiver.RejectMessage(scene, next(), reason))
	letters := must(scene.session.NewReceiver(scene, scene.name+"/$dlq", nil))
	dead := scene.next(letters)
	check(letters.AcceptMessage(scene, dead))
	return map[string]any{"seen": seen, "dead": []any{
		dead.Value, dead.Annotations["x-opt-dead-letter-source"], dead.Annotations["x-opt-dead-letter-condition"],
		dead.Annotations["x-opt-dead-letter-description"],
	}}
}

// What a client has when it closes its connection comes back, uncounted.
func loss(scene *Scene) map[string]any {
	scene.send(scene.sender(nil), value("held"))
	connection, session := scene.connect(user("alice", "secret"))
	scene.next(must(session.NewReceiver(scene, scene.name, nil)))
	check(connection.Close())
	receiver := scene.receiver(nil)
	again := scene.next(receiver)
	check(receiver.AcceptMessage(scene, again))
	return map[string]any{"body": again.Value, "count": deliveryCount(again)}
}

// Receivers, sessions and connections that fetch ahead, receive one message and close; what is left, and how often it
// was counted.
func closing(scene *Scene) map[string]any {
	return closingOver(scene, "amqp://"+scene.address, user("alice", "secret"))
}

func closingOverTLS(scene *Scene) map[string]any {
	return closingOver(scene, "amqps://"+scene.secure, trusting())
}

func closingOver(scene *Scene, url string, how *amqp.ConnOptions) map[string]any {
	const rounds, messages = 100, 200
	scene.sendNumbers(messages, true)
	options := &amqp.ReceiverOptions{Credit: 1_000}
	for round := range rounds {
		connection, session := scene.connectTo(url, how)
		receiver := must(session.NewReceiver(scene, scene.name, options))
		check(receiver.AcceptMessage(scene, scene.next(receiver)))
		if round%3 == 0 {
			check(receiver.Close(scene))
		}
		if round%3 == 1 {
			check(session.Close(scene))
		}
		check(connection.Close())
	}
	receiver := scene.receiver(options)
	bodies := []any{}
	counts := uint32(0)
	for len(bodies) < messages-rounds {
		message := scene.next(receiver)
		check(receiver.AcceptMessage(scene, message))
		bodies = append(bodies, message.Value)
		counts += deliveryCount(message)
	}
	return map[string]any{"bodies": bodies, "counts": counts}
}

func deliveryCount(message *amqp.Message) uint32 {
	if message.Header == nil {
		return 0
	}
	return message.Header.DeliveryCount
}

// Settled when sent, both ways.
func presettled(scene *Scene) map[string]any {
	sender := scene.sender(&amqp.SenderOptions{SettlementMode: amqp.SenderSettleModeSettled.Ptr()})
	for number := range 500 {
		check(sender.Send(scene, value(int64(number)), nil))
	}
	receiver := scene.receiver(&amqp.ReceiverOptions{
		Credit: 50, RequestedSenderSettleMode: amqp.SenderSettleModeSettled.Ptr(),
	})
	bodies := []any{}
	for len(bodies) < 500 {
		bodies = append(bodies, scene.next(receiver).Value)
	}
	return map[string]any{"bodies": bodies}
}

// The receiver settles second: accepting waits for the broker.
func second(scene *Scene) map[string]any {
	scene.sendNumbers(100, false)
	receiver := scene.receiver(&amqp.ReceiverOptions{Credit: 10, SettlementMode: amqp.ReceiverSettleModeSecond.Ptr()})
	return map[string]any{"bodies": scene.take(receiver, 100)}
}

// Credit by hand: so many messages come, and draining takes back what is left of it.
func credit(scene *Scene) map[string]any {
	scene.sendNumbers(5, false)
	receiver := scene.receiver(&amqp.ReceiverOptions{Credit: -1})
	check(receiver.IssueCredit(3))
	bodies := scene.take(receiver, 3)
	before := receiver.Prefetched() == nil
	check(receiver.IssueCredit(100))
	bodies = append(bodies, scene.take(receiver, 2)...)
	check(receiver.DrainCredit(scene, nil))
	scene.sendNumbers(1, false)
	check(receiver.IssueCredit(1))
	return map[string]any{"bodies": append(bodies, scene.take(receiver, 1)...), "no more": before}
}

// Two browsers, then a receiver that takes.
func browse(scene *Scene) map[string]any {
	scene.sendNumbers(50, false)
	found := [][]any{}
	for range 2 {
		browser := scene.receiver(&amqp.ReceiverOptions{SourceDistributionMode: amqp.SourceDistributionModeCopy})
		found = append(found, scene.take(browser, 50))
		check(browser.Close(scene))
	}
	return map[string]any{"browsed": found, "taken": scene.take(scene.receiver(nil), 50)}
}

// A selector lets messages through; the others stay.
func selects(scene *Scene) map[string]any {
	colours := []*amqp.Message{}
	for _, colour := range []string{"red", "blue", "red"} {
		message := value(colour)
		message.ApplicationProperties = map[string]any{"colour": colour}
		colours = append(colours, message)
	}
	scene.send(scene.sender(nil), colours...)
	filters := []amqp.LinkFilter{amqp.NewSelectorFilter("colour = 'red'")}
	red := scene.take(scene.receiver(&amqp.ReceiverOptions{Filters: filters}), 2)
	return map[string]any{"selected": red, "rest": scene.take(scene.receiver(nil), 1)}
}

// A request is answered over a queue that the broker names.
func request(scene *Scene) map[string]any {
	answers := must(scene.session.NewReceiver(scene, "", &amqp.ReceiverOptions{DynamicAddress: true}))
	address := answers.Address()
	question := value("question")
	question.Properties = &amqp.MessageProperties{ReplyTo: &address, MessageID: "1"}
	scene.send(scene.sender(nil), question)
	server := scene.receiver(nil)
	asked := scene.next(server)
	check(server.AcceptMessage(scene, asked))
	answer := value("answer")
	answer.Properties = &amqp.MessageProperties{CorrelationID: asked.Properties.MessageID}
	scene.send(must(scene.session.NewSender(scene, *asked.Properties.ReplyTo, nil)), answer)
	came := scene.next(answers)
	return map[string]any{"answer": came.Value, "correlation": came.Properties.CorrelationID}
}

// trusting is alice, with TLS to a broker whose certificate the system's authorities have signed.
func trusting() *amqp.ConnOptions {
	options := user("alice", "secret")
	options.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
	return options
}

// Who enters: PLAIN with the right and a wrong password, TLS, nobody at all.
func enter(scene *Scene) map[string]any {
	enters := func(url string, options *amqp.ConnOptions) bool {
		connection, err := amqp.Dial(scene, url, options)
		if err != nil {
			return false
		}
		check(connection.Close())
		return true
	}
	plain, secure := "amqp://"+scene.address, "amqps://"+scene.secure
	return map[string]any{
		"right": enters(plain, user("alice", "secret")), "wrong": enters(plain, user("alice", "wrong")),
		"nobody": enters(plain, nil), "tls": enters(secure, trusting()),
		"in the url": enters("amqp://alice:secret@"+scene.address, nil),
	}
}

// Links that the broker refuses, and one that it detaches when another of the same name and container comes.
func detached(scene *Scene) map[string]any {
	bob, session := scene.connect(user("bob", "secret"))
	_, err := session.NewSender(scene, scene.name, nil)
	refused := why(err)
	below := must(session.NewSender(scene, "bob/"+scene.name, nil))
	check(below.Send(scene, value("x"), nil))
	check(bob.Close())

	options := user("alice", "secret")
	options.ContainerID = "twice"
	first, session := scene.connect(options)
	kept := &amqp.ReceiverOptions{Name: "link", SourceExpiryTimeout: 60}
	receiver := must(session.NewReceiver(scene, scene.name, kept))
	second, session := scene.connect(options)
	again := must(session.NewReceiver(scene, scene.name, kept))
	_, err = receiver.Receive(scene, nil)
	stolen := why(err)
	scene.send(scene.sender(nil), value("for the second"))
	bodies := scene.take(again, 1)
	check(first.Close())
	check(second.Close())
	// Its connection serves other links after that.
	begun := time.Now()
	scene.send(scene.sender(nil), value("after"))
	return map[string]any{
		"refused": refused, "stolen": stolen, "bodies": bodies, "after": scene.take(scene.receiver(nil), 1),
		"quick": time.Since(begun) < timeout/2,
	}
}
