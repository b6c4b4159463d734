// Calls of azservicebus, Azure's client for Go: azure CONNECTION_STRING OTHER SECURE PREFIX NAME... prints a line of
// JSON for each scenario of that name; OTHER is the connection string of a user who may only receive, SECURE is one
// over TLS.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
)

const timeout = 100 * time.Second

// Scene is what a scenario works with: nodes whose names start with `name` are its own.
type Scene struct {
	context.Context
	connectionString, other, secure, name string
	client                                *azservicebus.Client
}

type scenario func(*Scene) map[string]any

var scenarios = map[string]scenario{
	"send": send, "batch": batch, "settle": settle, "renew": renew, "lost": lost, "peek": peek, "schedule": schedule,
	"topic": topic, "refused": refused, "websocket": overWebSocket, "deferred": deferred, "duplicates": duplicates,
	"session": session, "restart": restart, "pairs": pairs,
}

// check ends a scenario whose call fails.
func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// why is the code of an error as applications test for it, or "" where nothing failed.
func why(err error) string {
	var known *azservicebus.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &known):
		return string(known.Code)
	default:
		return "without a code: " + err.Error()
	}
}

func open(connectionString string, options azservicebus.ClientOptions) *azservicebus.Client {
	options.RetryOptions.MaxRetries = -1 // none: 0 is three
	return must(azservicebus.NewClientFromConnectionString(connectionString, &options))
}

func (scene *Scene) sender(name string) *azservicebus.Sender {
	return must(scene.client.NewSender(name, nil))
}

func (scene *Scene) receiver(name string) *azservicebus.Receiver {
	return must(scene.client.NewReceiverForQueue(name, nil))
}

func (scene *Scene) deadLetters(name string) *azservicebus.Receiver {
	options := &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter}
	return must(scene.client.NewReceiverForQueue(name, options))
}

// send sends one message of each text.
func (scene *Scene) send(name string, texts ...string) {
	sender := scene.sender(name)
	for _, text := range texts {
		check(sender.SendMessage(scene, &azservicebus.Message{Body: []byte(text), MessageID: &text}, nil))
	}
	check(sender.Close(scene))
}

// received gives so many messages, in as many calls as it takes.
func (scene *Scene) received(receiver *azservicebus.Receiver, count int) []*azservicebus.ReceivedMessage {
	found := []*azservicebus.ReceivedMessage{}
	for len(found) < count {
		found = append(found, must(receiver.ReceiveMessages(scene, count-len(found), nil))...)
	}
	return found
}

func (scene *Scene) next(receiver *azservicebus.Receiver) *azservicebus.ReceivedMessage {
	return scene.received(receiver, 1)[0]
}

// left is how many messages a queue still has.
func (scene *Scene) left(receiver *azservicebus.Receiver) int {
	first := int64(0)
	options := &azservicebus.PeekMessagesOptions{FromSequenceNumber: &first}
	return len(must(receiver.PeekMessages(scene, 100, options)))
}

func texts(messages []*azservicebus.ReceivedMessage) []string {
	found := []string{}
	for _, message := range messages {
		found = append(found, string(message.Body))
	}
	return found
}

// run gives what a scenario found, or why it did not end well.
func run(scene *Scene, work scenario) (found map[string]any) {
	defer func() {
		if failure := recover(); failure != nil {
			found = map[string]any{"failed": fmt.Sprint(failure)}
		}
	}()
	var cancel context.CancelFunc
	scene.Context, cancel = context.WithTimeout(context.Background(), timeout)
	defer cancel()
	scene.client = open(scene.connectionString, azservicebus.ClientOptions{})
	found = work(scene)
	check(scene.client.Close(scene))
	return found
}

// show prints what a scenario found.
func show(scenario string, found any) {
	check(json.NewEncoder(os.Stdout).Encode(map[string]any{"scenario": scenario, "found": found}))
}

func main() {
	for _, name := range os.Args[5:] {
		scene := &Scene{connectionString: os.Args[1], other: os.Args[2], secure: os.Args[3], name: os.Args[4] + name}
		found := map[string]any{"failed": "there is no scenario of this name"}
		if work := scenarios[name]; work != nil {
			found = run(scene, work)
		}
		show(name, found)
	}
}
