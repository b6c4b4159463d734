package main

import (
	"math"
	"slices"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

var languages = []string{"python", "javascript", "go", "java", "dotnet"}

// What this client sends to those of other languages, and receives from them: tests/interop/azure_pairs.py describes it.
func pairs(scene *Scene) map[string]any {
	for _, receiver := range languages {
		give(scene, "pairs/go/"+receiver)
	}
	found := map[string]any{}
	for _, sender := range languages {
		found[sender] = take(scene, "pairs/"+sender+"/go")
	}
	return found
}

func give(scene *Scene, queue string) {
	text := func(value string) *string { return &value }
	lives := time.Hour
	sender := scene.sender(queue)
	check(sender.SendMessage(scene, &azservicebus.Message{
		Body: []byte("Zug \U0001f682"), MessageID: text("data"), CorrelationID: text("correlation"), Subject: text("subject"),
		ContentType: text("text/plain"), ReplyTo: text("reply"), To: text("to"), SessionID: text("s"),
		ReplyToSessionID: text("r"), TimeToLive: &lives,
		ApplicationProperties: map[string]any{"text": "value", "number": int64(7), "flag": true, "part": 0.5},
	}, nil))
	for name, body := range map[string]azservicebus.AMQPAnnotatedMessageBody{
		"value": {Value: "größer"}, "sequence": {Sequence: [][]any{{int64(1), "a"}}},
	} {
		check(sender.SendAMQPAnnotatedMessage(scene, &azservicebus.AMQPAnnotatedMessage{
			Body: body, Properties: &azservicebus.AMQPAnnotatedMessageProperties{MessageID: name},
		}, nil))
	}
	later := []*azservicebus.Message{{Body: []byte("later"), MessageID: text("scheduled")}}
	must(sender.ScheduleMessages(scene, later, time.Now().Add(time.Second), nil))
	check(sender.Close(scene))
	sessions := scene.sender(queue + "/session")
	for _, each := range []string{"1", "2"} {
		check(sessions.SendMessage(scene, &azservicebus.Message{Body: []byte(each), SessionID: text("s")}, nil))
	}
	check(sessions.Close(scene))
}

func take(scene *Scene, queue string) map[string]any {
	receiver := scene.receiver(queue)
	messages := map[string]*azservicebus.ReceivedMessage{}
	for _, each := range scene.received(receiver, 4) {
		messages[each.MessageID] = each
	}
	data, value := messages["data"], messages["value"]
	sequence, scheduled := messages["sequence"], messages["scheduled"]
	check(receiver.CompleteMessage(scene, data, nil))
	check(receiver.AbandonMessage(scene, value, nil))
	again := scene.next(receiver)
	check(receiver.CompleteMessage(scene, again, nil))
	reason, description := "why", "because"
	check(receiver.DeadLetterMessage(scene, sequence, &azservicebus.DeadLetterOptions{
		Reason: &reason, ErrorDescription: &description,
	}))
	check(receiver.DeferMessage(scene, scheduled, nil))
	deferred := must(receiver.ReceiveDeferredMessages(scene, []int64{*scheduled.SequenceNumber}, nil))[0]
	check(receiver.CompleteMessage(scene, deferred, nil))
	session := must(scene.client.AcceptSessionForQueue(scene, queue+"/session", "s", nil))
	texts := ""
	for len(texts) < 2 {
		for _, message := range must(session.ReceiveMessages(scene, 2, nil)) {
			texts += string(message.Body)
			check(session.CompleteMessage(scene, message, nil))
		}
	}
	check(session.SetSessionState(scene, []byte("go"), nil))
	check(session.Close(scene))
	return map[string]any{
		"data": string(data.Body),
		"fields": []any{
			data.CorrelationID, data.Subject, data.ContentType, data.ReplyTo, data.To, data.SessionID, data.ReplyToSessionID,
			math.Round(data.TimeToLive.Seconds()),
		},
		"application": data.ApplicationProperties,
		"value":       value.RawAMQPMessage.Body.Value,
		"again":       []any{again.RawAMQPMessage.Body.Value, again.DeliveryCount - value.DeliveryCount},
		"sequence":    slices.Concat(sequence.RawAMQPMessage.Body.Sequence...),
		"scheduled":   string(deferred.Body), "session": texts,
	}
}
