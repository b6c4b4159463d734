// Messages of MassTransit's own serializers, written and read: write, or read FILE.
//
// write: what MassTransit sends, each as a line {"scenario": NAME, "found": {"body", "contentType", "headers"}}.
// read FILE: what MassTransit reads of the messages in a file, each a line {"name", "type", "body", "contentType", "headers"}.
using MassTransit;
using MassTransit.Context;
using MassTransit.Serialization;
using Shop.Contracts;

public static class MassTransitMessages
{
    public static readonly SystemTextJsonMessageSerializer Envelope = new();
    public static readonly SystemTextJsonRawMessageSerializer Raw = new();

    public static readonly Guid Id = new("10000000-0000-0000-0000-000000000001");

    public static Everything Full() => new()
    {
        MyXMLDoc = "<a/>", Is3D = true, URL = "u", IPAddress = "::1", Price = 9.50m, Count = 7, Ratio = 1.5, Big = long.MaxValue,
        At = new DateTime(2026, 1, 31, 12, 0, 0, DateTimeKind.Utc).AddTicks(1234567),
        Local = new DateTime(2026, 1, 31, 12, 0, 0), Offset = new DateTimeOffset(2026, 1, 31, 12, 0, 0, TimeSpan.FromHours(2)),
        Day = new DateOnly(2026, 1, 31), Time = new TimeOnly(12, 30, 0, 500), Span = new TimeSpan(1, 2, 3, 4, 500), Back = TimeSpan.FromSeconds(-1.5),
        Phase = Phase.InTransit, PhaseText = Phase.InTransit, Id = Id, Data = [1, 2, 255], Keys = new() { ["Some_Key"] = 1 },
        Numbers = new() { [7] = "seven" }, Tags = ["a", "b"], Lines = [new Line { ItemCode = "t_1", UnitPrice = 1.25m, Wait = TimeSpan.FromMinutes(90) }],
        Main = new Line { ItemCode = "m" }, Optional = 3, Nothing = null,
    };

    static MessageSendContext<T> Context<T>(T message) where T : class => new(message)
    {
        MessageId = Id, ConversationId = new("20000000-0000-0000-0000-000000000002"), SourceAddress = new Uri("sb://shop/dotnet_bus?autodelete=300"),
    };

    static MessageSendContext<T> Request<T>(T message) where T : class
    {
        var context = Context(message);
        context.RequestId = new("30000000-0000-0000-0000-000000000003");
        context.CorrelationId = new("40000000-0000-0000-0000-000000000004");
        context.InitiatorId = new("50000000-0000-0000-0000-000000000005");
        context.ResponseAddress = new Uri("sb://shop/vm_dotnet_bus_abc?autodelete=300");
        context.FaultAddress = new Uri("queue:dotnet-faults");
        context.TimeToLive = TimeSpan.FromMinutes(1);
        context.Headers.Set("tenant", "north");
        context.Headers.Set("number", 7);
        context.Headers.Set("object", new { A = 1 });
        return context;
    }

    static void Write<T>(string name, IMessageSerializer serializer, MessageSendContext<T> context) where T : class
    {
        var body = serializer.GetMessageBody(context).GetString();
        var headers = context.Headers.GetAll().ToDictionary(pair => pair.Key, pair => pair.Value is int number ? (object)number : pair.Value.ToString());
        Report.Found(name, new { body, contentType = serializer.ContentType.ToString(), headers });
    }

    public static Task Run(string[] arguments)
    {
        if (arguments[0] == "write")
        {
            Write("everything", Envelope, Context(Full()));
            Write("nothing", Envelope, Context(new Everything()));
            Write("request", Envelope, Request(new Ask { Number = 7 }));
            Write("raw", Raw, Context(Full()));
            Write("raw-request", Raw, Request(new Ask { Number = 7 }));
            Write("derived", Envelope, Context(new Derived { Number = 1, More = "more" }));
            Write<Fault<Ask>>("fault", Envelope, Context<Fault<Ask>>(new AskFault()));
            Report.Found("names", new
            {
                fault = MessageUrn.ForTypeString<Fault<Ask>>(),
                nested = MessageUrn.ForTypeString<Outer.Inner>(),
                topics = new[] { typeof(Ask), typeof(Outer.Inner), typeof(Fault<Ask>) }.Select(
                    new MassTransit.Transports.DefaultMessageNameFormatter("---", "--", "/", "-").GetMessageName),
                headers = new { MessageHeaders.MessageType, MassTransit.Logging.DiagnosticHeaders.ActivityId },
            });
            return Task.CompletedTask;
        }
        foreach (var line in File.ReadLines(arguments[1]))
        {
            var given = JsonSerializer.Deserialize<Given>(line, new JsonSerializerOptions(JsonSerializerDefaults.Web));
            try
            {
                Report.Found(given.Name, Read(given));
            }
            catch (Exception error)
            {
                Report.Found(given.Name, new { error = error.ToString() });
            }
        }
        return Task.CompletedTask;
    }

    static object Read(Given given)
    {
        var headers = new DictionarySendHeaders(new Dictionary<string, object>());
        foreach (var (key, value) in given.Headers) headers.Set(key, value.ValueKind == JsonValueKind.String ? value.GetString() : value.GetRawText());
        IMessageDeserializer serializer = given.ContentType == Raw.ContentType.MediaType ? Raw : Envelope;
        var read = serializer.Deserialize(new StringMessageBody(given.Body), headers, new Uri("sb://shop/python"));
        return given.Type switch
        {
            "Everything" => Shown<Everything>(read, Different),
            "Ask" => Shown<Ask>(read, message => message.Number),
            "Answer" => Shown<Answer>(read, message => message.Text),
            "IAnswer" => Shown<IAnswer>(read, message => message.MyXMLText),
            "Fault" => Shown<Fault<Ask>>(read, message => new
            {
                message.Message.Number, message.FaultedMessageId, message.Timestamp, message.Host.MachineName, message.FaultMessageTypes,
                Exceptions = message.Exceptions.Select(each => new { each.ExceptionType, each.Message, each.Source, data = each.Data?.Count }),
            }),
            _ => throw new ArgumentException($"expected a type of these, found {given.Type}"),
        };
    }

    static object Shown<T>(SerializerContext read, Func<T, object> show) where T : class
    {
        if (!read.TryGetMessage<T>(out var message)) return new { unsupported = read.SupportedMessageTypes };
        var context = (MessageContext)read;
        return new
        {
            message = show(message), context.MessageId, context.RequestId, context.CorrelationId, context.ConversationId, context.InitiatorId,
            source = context.SourceAddress?.ToString(), response = context.ResponseAddress?.ToString(), fault = context.FaultAddress?.ToString(),
            expires = context.ExpirationTime.HasValue, headers = context.Headers.GetAll().Where(pair => !pair.Key.StartsWith("lightrail-")).ToDictionary(pair => pair.Key, pair => pair.Value?.ToString()),
        };
    }

    // The properties in which a message is not Full(), apart from the units of 100 ns that Python does not have.
    public static List<string> Different(Everything found)
    {
        var expected = Full();
        (expected.At, found.At) = (Whole(expected.At), Whole(found.At));
        return typeof(Everything).GetProperties().Where(property => Text(property.GetValue(found)) != Text(property.GetValue(expected)))
            .Select(property => $"{property.Name}: {Text(property.GetValue(found))} for {Text(property.GetValue(expected))}").ToList();
        static DateTime Whole(DateTime time) => new(time.Ticks / 10 * 10, time.Kind);
        static string Text(object value) => value is DateTime time ? $"{time:O} {time.Kind}" : JsonSerializer.Serialize(value);
    }

    record Given(string Name, string Type, string Body, string ContentType, Dictionary<string, JsonElement> Headers);

    public class AskFault : Fault<Ask>
    {
        public Ask Message => new() { Number = 7 };
        public Guid FaultId => new("60000000-0000-0000-0000-000000000006");
        public Guid? FaultedMessageId => Id;
        public DateTime Timestamp => new DateTime(2026, 1, 31, 12, 0, 0, DateTimeKind.Utc).AddTicks(1234567);
        public ExceptionInfo[] Exceptions => [new MassTransit.Events.FaultExceptionInfo(new InvalidOperationException("no such number"))];
        public HostInfo Host => MassTransit.Metadata.HostMetadataCache.Host;
        public string[] FaultMessageTypes => MessageTypeCache<Ask>.MessageTypeNames;
    }
}

namespace Shop.Contracts
{
    using System.Text.Json.Serialization;

    public enum Phase { New, Placed, InTransit }

    public class Everything
    {
        public string MyXMLDoc { get; set; }
        public bool Is3D { get; set; }
        public string URL { get; set; }
        public string IPAddress { get; set; }
        public decimal Price { get; set; }
        public int Count { get; set; }
        public double Ratio { get; set; }
        public long Big { get; set; }
        public DateTime At { get; set; }
        public DateTime Local { get; set; }
        public DateTimeOffset Offset { get; set; }
        public DateOnly Day { get; set; }
        public TimeOnly Time { get; set; }
        public TimeSpan Span { get; set; }
        public TimeSpan Back { get; set; }
        public Phase Phase { get; set; }
        [JsonConverter(typeof(JsonStringEnumConverter))] public Phase PhaseText { get; set; }
        public Guid Id { get; set; }
        public byte[] Data { get; set; }
        public Dictionary<string, int> Keys { get; set; }
        public Dictionary<int, string> Numbers { get; set; }
        public List<string> Tags { get; set; }
        public List<Line> Lines { get; set; }
        public Line Main { get; set; }
        public int? Optional { get; set; }
        public string Nothing { get; set; }
    }

    public class Line
    {
        public string ItemCode { get; set; }
        public decimal UnitPrice { get; set; }
        public TimeSpan Wait { get; set; }
    }

    public class Ask { public int Number { get; set; } }
    public class Answer { public string Text { get; set; } }
    public interface IAnswer { string MyXMLText { get; } }
    public class Base { public int Number { get; set; } }
    public class Derived : Base { public string More { get; set; } }
    public class Outer { public class Inner { } }
}
