// A service with MassTransit's serializers and Service Bus's client, beside one in Python: CONNECTION_STRING ADMINISTRATION RAW PREFIX.
//
// Messages have the properties, names and addresses that MassTransit's transport for Service Bus gives them, and as that does, the service
// asks whether a queue exists before it answers there.
using MassTransit;
using MassTransit.Context;
using MassTransit.Serialization;
using Shop.Contracts;

public static class MassTransitService
{
    static string Topic, Own, Asked;
    static readonly TimeSpan Patience = TimeSpan.FromSeconds(60);
    static ServiceBusClient client;
    static ServiceBusAdministrationClient administration;
    static bool raw;

    public static async Task Run(string[] arguments)
    {
        client = new ServiceBusClient(arguments[0], Report.Once());
        administration = new ServiceBusAdministrationClient(arguments[1]);
        raw = bool.Parse(arguments[2]);
        (Topic, Own) = ($"{arguments[3]}Shop.Contracts/Everything", $"{arguments[3]}vm_dotnet_bus");
        Asked = $"{arguments[3]}dotnet-ask";
        Report.Found("topic", (await administration.TopicExistsAsync(Topic)).Value);
        await administration.CreateSubscriptionAsync(Topic, "dotnet");
        await administration.CreateQueueAsync(Own);

        // An event of this service, for itself and for Python, whose handler publishes the same event.
        await Send(Topic, MassTransitMessages.Full(), _ => { });
        var events = client.CreateReceiver(Topic, "dotnet");
        for (var count = 0; count < 2; count++)
        {
            var read = Read(await Next(events));
            read.TryGetMessage<Everything>(out var everything);
            Report.Found($"event-{count}", MassTransitMessages.Different(everything));
        }

        // Requests to Python: one that is published to the topic of its type, and one to the queue of the command.
        var answers = client.CreateReceiver(Own);
        foreach (var (number, name) in new[] { (7, $"{arguments[3]}Shop.Contracts/Ask"), (0, $"{arguments[3]}commands/dotnet.ask") })
        {
            var id = Guid.NewGuid();
            await Send(name, new Ask { Number = number }, context =>
            {
                context.RequestId = id;
                context.ResponseAddress = new Uri($"sb://{client.FullyQualifiedNamespace}/{Own}?autodelete=300");
                context.TimeToLive = Patience;
            });
            var read = Read(await Next(answers));
            var has = ((MessageContext)read).RequestId == id;
            if (read.TryGetMessage<Answer>(out var answer)) Report.Found("answer", new { has, answer.Text });
            else if (read.TryGetMessage<Fault<Ask>>(out var fault)) Report.Found("fault", new { has, fault.Message.Number, fault.Exceptions[0].Message });
        }

        // Requests of Python: an answer, and a fault.
        var asked = client.CreateReceiver(Asked);
        for (var count = 0; count < 2; count++)
        {
            var read = Read(await Next(asked));
            var request = (MessageContext)read;
            read.TryGetMessage<Ask>(out var ask);
            var name = request.ResponseAddress.AbsolutePath.TrimStart('/');
            Report.Found($"exists-{ask.Number}", (await administration.QueueExistsAsync(name)).Value);
            if (ask.Number != 0) await Send(name, new Answer { Text = $"number {ask.Number}" }, context => context.RequestId = request.RequestId);
            else await Send<Fault<Ask>>(name, new MassTransitMessages.AskFault(), context => context.RequestId = request.RequestId);
        }
    }

    static async Task<ServiceBusReceivedMessage> Next(ServiceBusReceiver receiver)
    {
        var message = await receiver.ReceiveMessageAsync(Patience) ?? throw new TimeoutException($"expected a message at {receiver.EntityPath}, found none");
        await receiver.CompleteMessageAsync(message);
        return message;
    }

    static SerializerContext Read(ServiceBusReceivedMessage message)
    {
        var headers = new DictionarySendHeaders(new Dictionary<string, object>());
        foreach (var (key, value) in message.ApplicationProperties) headers.Set(key, value);
        IMessageDeserializer serializer = message.ContentType == MassTransitMessages.Raw.ContentType.MediaType ? MassTransitMessages.Raw : MassTransitMessages.Envelope;
        return serializer.Deserialize(new StringMessageBody(message.Body.ToString()), headers, new Uri("sb://dotnet/service"));
    }

    static async Task Send<T>(string name, T message, Action<SendContext> change) where T : class
    {
        var context = new MessageSendContext<T>(message) { MessageId = NewId.NextGuid(), SourceAddress = new Uri($"sb://{client.FullyQualifiedNamespace}/{Own}") };
        context.ConversationId = context.MessageId;
        change(context);
        IMessageSerializer serializer = raw ? MassTransitMessages.Raw : MassTransitMessages.Envelope;
        var sent = new ServiceBusMessage(serializer.GetMessageBody(context).GetBytes())
        {
            ContentType = serializer.ContentType.ToString(), MessageId = context.MessageId.Value.ToString("N"),
        };
        if (context.TimeToLive.HasValue) sent.TimeToLive = context.TimeToLive.Value;
        foreach (var (key, value) in context.Headers.GetAll()) sent.ApplicationProperties[key] = value;
        await client.CreateSender(name).SendMessageAsync(sent);
    }
}
