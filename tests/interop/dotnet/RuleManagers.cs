// Rules by the client's own manager, over AMQP: what is added comes back, and what a subscription gets by filters of each kind.
public static class RuleManagers
{
    // Colours and quantities of what is sent, each once.
    private static readonly (string Colour, int Quantity, string Priority)[] Parts =
    [
        ("blue", 5, "low"), ("red", 10, "high"), ("yellow", 5, "low"), ("blue", 10, "low"), ("yellow", 10, "high"),
    ];

    public static async Task Run(Scene scene)
    {
        var topic = await scene.Topic("topic");
        await using var client = new ServiceBusClient(scene.ConnectionString, Report.Once());
        await Kept(scene, client, topic);
        await Timed(scene, client);
        (string Name, RuleFilter Filter, string Action)[] rules =
        [
            ("default", null, null),
            ("true", new TrueRuleFilter(), null),
            ("false", new FalseRuleFilter(), null),
            ("correlation field", new CorrelationRuleFilter { Subject = "red" }, null),
            ("correlation property", new CorrelationRuleFilter { ApplicationProperties = { ["color"] = "red" } }, null),
            ("correlation with action", new CorrelationRuleFilter { ApplicationProperties = { ["Color"] = "blue" } }, "Set Priority = 'set'"),
            ("sql field", new SqlRuleFilter("sys.Label = 'yellow'"), null),
            ("sql property", new SqlRuleFilter("Color = 'yellow'"), null),
            ("sql with action", new SqlRuleFilter("Color = 'blue'"), "SET Priority = 'set'"),
            ("sql and", new SqlRuleFilter("Color = 'blue' and Quantity = 10"), null),
            ("sql or", new SqlRuleFilter("Color = 'blue' or Quantity = 10"), null),
        ];
        foreach (var (name, filter, action) in rules)
        {
            await scene.Administration.CreateSubscriptionAsync(topic, name.Replace(' ', '-'));
            if (filter is null)
                continue;
            await using var manager = client.CreateRuleManager(topic, name.Replace(' ', '-'));
            await manager.DeleteRuleAsync("$Default");
            await manager.CreateRuleAsync(new CreateRuleOptions("own", filter) { Action = action is null ? null : new SqlRuleAction(action) });
        }
        await client.CreateSender(topic).SendMessagesAsync(Parts.Select((part, index) => new ServiceBusMessage($"{index}")
        {
            Subject = part.Colour, CorrelationId = part.Priority,
            ApplicationProperties = { ["color"] = part.Colour, ["quantity"] = part.Quantity, ["priority"] = part.Priority },
        }));
        foreach (var (name, _, action) in rules)
        {
            var receiver = client.CreateReceiver(topic, name.Replace(' ', '-'));
            SubscriptionRuntimeProperties counts = await scene.Administration.GetSubscriptionRuntimePropertiesAsync(topic, name.Replace(' ', '-'));
            var messages = await Scene.Take(receiver, (int)counts.ActiveMessageCount);
            var texts = messages.Select(message => action is null ? $"{message.Body}" : $"{message.Body} {message.ApplicationProperties["priority"]}");
            scene.Found(name, string.Join(" ", texts.Order()));
        }
    }

    // Times that actions set: how long a message lives in one subscription, and when it comes there.
    private static async Task Timed(Scene scene, ServiceBusClient client)
    {
        var topic = await scene.Topic("timed");
        (string Name, string Action)[] rules =
        [
            ("short", "SET sys.TimeToLive = '00:05:00'"),
            // There is no function for the present time.
            ("late", "SET sys.TimeToLive = '00:00:01'; SET sys.ScheduledEnqueueTimeUtc = sys.ExpiresAtUtc; SET sys.TimeToLive = '01:00:00'"),
        ];
        foreach (var (name, action) in rules)
        {
            var rule = new CreateRuleOptions("own", new TrueRuleFilter()) { Action = new SqlRuleAction(action) };
            await scene.Administration.CreateSubscriptionAsync(new CreateSubscriptionOptions(topic, name), rule);
        }
        var bad = new CreateRuleOptions("bad", new TrueRuleFilter()) { Action = new SqlRuleAction("SET sys.TimeToLive = 60") };
        scene.Found("no duration", await Report.Failure(() => scene.Administration.CreateRuleAsync(topic, "short", bad)));
        await client.CreateSender(topic).SendMessageAsync(new ServiceBusMessage("timed") { TimeToLive = TimeSpan.FromMinutes(1) });
        foreach (var (name, _) in rules)
        {
            var message = (await Scene.Take(client.CreateReceiver(topic, name), 1))[0];
            var isOnTime = message.EnqueuedTime >= message.ScheduledEnqueueTime;
            scene.Found(name, $"{message.TimeToLive} {message.ExpiresAt - message.EnqueuedTime} {message.SequenceNumber} {isOnTime}");
        }
    }

    private static async Task Kept(Scene scene, ServiceBusClient client, string topic)
    {
        await scene.Administration.CreateSubscriptionAsync(topic, "kept");
        await using var manager = client.CreateRuleManager(topic, "kept");

        async Task<List<RuleProperties>> Rules()
        {
            var found = new List<RuleProperties>();
            await foreach (var rule in manager.GetRulesAsync())
                found.Add(rule);
            return found;
        }

        scene.Found("first", (await Rules()).Select(rule => $"{rule.Name} {rule.Filter} {rule.Action}"));
        var correlation = new CorrelationRuleFilter
        {
            CorrelationId = "correlation", Subject = "subject", MessageId = "id", ReplyTo = "reply", ReplyToSessionId = "reply session",
            SessionId = "session", To = "to", ContentType = "type", ApplicationProperties = { ["key"] = "value", ["number"] = 7L },
        };
        await manager.CreateRuleAsync("sql", new SqlRuleFilter("price > 10"));
        await manager.CreateRuleAsync(new CreateRuleOptions("correlation", correlation) { Action = new SqlRuleAction("Set x = 'y'") });
        var rules = await Rules();
        var sql = rules.Single(rule => rule.Name == "sql");
        scene.Found("sql", $"{((SqlRuleFilter)sql.Filter).SqlExpression} {sql.Action is null}");
        var own = rules.Single(rule => rule.Name == "correlation");
        scene.Found("correlation", $"{own.Filter.Equals(correlation)} {((SqlRuleAction)own.Action).SqlExpression}");
        scene.Found("twice", await Report.Failure(() => manager.CreateRuleAsync("sql", new TrueRuleFilter())));
        foreach (var rule in rules)
            await manager.DeleteRuleAsync(rule.Name);
        scene.Found("none", (await Rules()).Count);
        scene.Found("not there", await Report.Failure(() => manager.DeleteRuleAsync("sql")));
    }
}
