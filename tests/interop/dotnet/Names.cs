// Names of entities as a program for Service Bus writes them: CONNECTION_STRING ADMINISTRATION_STRING PREFIX.
public static class Names
{
    public static async Task Run(string[] arguments)
    {
        var (prefix, wait) = (arguments[2], TimeSpan.FromSeconds(10));
        await using var client = new ServiceBusClient(arguments[0], Report.Once());
        var admin = new ServiceBusAdministrationClient(arguments[1]);

        var missing = $"{prefix}/missing";
        Report.Found("missing", new[]
        {
            await Report.Failure(() => client.CreateSender(missing).SendMessageAsync(new ServiceBusMessage("x"))),
            await Report.Failure(() => client.CreateReceiver(missing).ReceiveMessageAsync(wait)),
            await Report.Failure(() => client.CreateReceiver($"{missing}/$DeadLetterQueue").ReceiveMessageAsync(wait)),
            await Report.Failure(() => client.CreateReceiver(missing, "none").ReceiveMessageAsync(wait)),
        });
        Report.Found("made", (await admin.QueueExistsAsync(missing)).Value);

        // What a client has just created it uses at once, however it writes the name.
        await admin.CreateQueueAsync($"{prefix}/CamelCase");
        await client.CreateSender($"{prefix}/camelcase").SendMessageAsync(new ServiceBusMessage("queue"));
        await using var receiver = client.CreateReceiver($"{prefix}/CAMELCASE");
        var message = await receiver.ReceiveMessageAsync(wait);
        await receiver.CompleteMessageAsync(message);
        Report.Found("queue", message.Body.ToString());
        Report.Found("shown", (await admin.GetQueueAsync($"{prefix}/camelCASE")).Value.Name);
        Report.Found("again", await Report.Failure(() => admin.CreateQueueAsync($"{prefix}/camelcase")));

        await admin.CreateTopicAsync($"{prefix}/Topic");
        await admin.CreateSubscriptionAsync($"{prefix}/topic", "Billing");
        await client.CreateSender($"{prefix}/TOPIC").SendMessageAsync(new ServiceBusMessage("topic"));
        await using var billing = client.CreateReceiver($"{prefix}/topic", "billing");
        message = await billing.ReceiveMessageAsync(wait);
        await billing.CompleteMessageAsync(message);
        Report.Found("subscription", message.Body.ToString());
        var rules = new List<string>();
        await foreach (var rule in admin.GetRulesAsync($"{prefix}/TOPIC", "BILLING"))
        {
            rules.Add(rule.Name);
        }
        Report.Found("rules", rules);
        Report.Found("rule", (await admin.GetRuleAsync($"{prefix}/TOPIC", "BILLING", "$default")).Value.Name);
        await admin.DeleteTopicAsync($"{prefix}/tOPIC");
        Report.Found("deleted", !(await admin.TopicExistsAsync($"{prefix}/Topic")).Value);
    }
}
