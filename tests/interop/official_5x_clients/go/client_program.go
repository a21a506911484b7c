// The official client for Go: client_program ADDRESS TOPIC TRANSACTION_TOPIC ORDERED_TOPIC GROUP. Each event is a line.
//
// It encrypts, as by default.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

const patience = 60 * time.Second

var printing sync.Mutex

func main() {
	address, topic, transactions, ordered, group := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[5]
	produce(address, topic)
	receive(address, topic, group+"-simple", 3)
	sendTransactions(address, transactions)
	receive(address, transactions, group+"-simple", 2)
	push(address, group+"-push", topic, 6, true, func() {})
	push(address, group+"-ordered", ordered, 6, false, func() { sendInOrder(address, ordered) })
	report("done")
}

func report(event ...any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(event...)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func config(address, group string) *rmq.Config {
	return &rmq.Config{Endpoint: address, ConsumerGroup: group, Credentials: &credentials.SessionCredentials{}}
}

func message(topic, body string) *rmq.Message {
	return &rmq.Message{Topic: topic, Body: []byte(body)}
}

func send(producer rmq.Producer, message *rmq.Message) *rmq.SendReceipt {
	receipts, err := producer.Send(context.Background(), message)
	check(err)
	return receipts[0]
}

func started(address, topic string, options ...rmq.ProducerOption) rmq.Producer {
	producer, err := rmq.NewProducer(config(address, ""), append(options, rmq.WithTopics(topic))...)
	check(err)
	check(producer.Start())
	return producer
}

// Sends one message of each kind, and recalls one.
func produce(address, topic string) {
	producer := started(address, topic)
	normal := message(topic, "normal")
	normal.SetTag("A")
	normal.SetKeys("key")
	normal.AddProperty("name", "value")
	report("sent normal", send(producer, normal).MessageID)
	grouped := message(topic, "ordered")
	grouped.SetMessageGroup("group-1")
	send(producer, grouped)
	delayed := message(topic, "delayed")
	delayed.SetDelayTimestamp(time.Now().Add(2 * time.Second))
	send(producer, delayed)
	recalled := message(topic, "recalled")
	recalled.SetDelayTimestamp(time.Now().Add(time.Minute))
	receipt := send(producer, recalled)
	id, err := producer.Recall(context.Background(), topic, receipt.RecallHandle)
	check(err)
	report("recalled", id == receipt.MessageID)
	check(producer.GracefulStop())
}

// Commits one transaction, rolls one back, and leaves one to the check of the server.
func sendTransactions(address, topic string) {
	checked := make(chan string, 1)
	producer := started(address, topic, rmq.WithTransactionChecker(&rmq.TransactionChecker{
		Check: func(view *rmq.MessageView) rmq.TransactionResolution {
			checked <- string(view.GetBody())
			return rmq.COMMIT
		},
	}))
	for _, end := range []string{"committed", "rolled-back", "checked"} {
		transaction := producer.BeginTransaction()
		_, err := producer.SendWithTransaction(context.Background(), message(topic, end), transaction)
		check(err)
		switch end {
		case "committed":
			check(transaction.Commit())
		case "rolled-back":
			check(transaction.RollBack())
		}
	}
	select {
	case body := <-checked:
		report("checked", body)
	case <-time.After(patience):
		log.Fatal("no check")
	}
	time.Sleep(time.Second) // the answer to the check
	check(producer.GracefulStop())
}

// Receives messages until `count` are acknowledged; the first one is hidden again before that.
func receive(address, topic, group string, count int) {
	consumer, err := rmq.NewSimpleConsumer(config(address, group), rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}))
	check(err)
	check(consumer.Start())
	for end, isFirst := time.Now().Add(patience), true; count > 0 && time.Now().Before(end); {
		views, _ := consumer.Receive(context.Background(), 16, 15*time.Second) // an error is that there is no message
		for _, view := range views {
			tag, group := "-", "-"
			if view.GetTag() != nil {
				tag = *view.GetTag()
			}
			if view.GetMessageGroup() != nil {
				group = *view.GetMessageGroup()
			}
			report("received", string(view.GetBody()), view.GetDeliveryAttempt(), tag, view.GetKeys(), group)
			if isFirst {
				check(consumer.ChangeInvisibleDuration(view, 20*time.Second))
				isFirst = false
			}
			check(consumer.Ack(context.Background(), view))
			count--
		}
	}
	check(consumer.GracefulStop())
}

// Consumes until `count` deliveries; with `isFailing`, those of the first attempt fail.
func push(address, group, topic string, count int, isFailing bool, onStarted func()) {
	delivered := make(chan struct{}, count)
	consumer, err := rmq.NewPushConsumer(config(address, group), rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(map[string]*rmq.FilterExpression{topic: rmq.SUB_ALL}),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{
			Consume: func(view *rmq.MessageView) rmq.ConsumerResult {
				report("pushed", group, string(view.GetBody()), view.GetDeliveryAttempt())
				delivered <- struct{}{}
				if isFailing && view.GetDeliveryAttempt() == 1 {
					return rmq.FAILURE
				}
				return rmq.SUCCESS
			},
		}))
	check(err)
	check(consumer.Start())
	time.Sleep(2 * time.Second) // a new group starts at the end of the queues
	onStarted()
	for end := time.After(patience); count > 0; count-- {
		select {
		case <-delivered:
		case <-end:
			log.Fatalf("%s: %d deliveries are missing", group, count)
		}
	}
	time.Sleep(time.Second) // the last acknowledgement
	check(consumer.GracefulStop())
}

func sendInOrder(address, topic string) {
	producer := started(address, topic)
	for _, number := range []string{"1", "2", "3"} {
		for _, group := range []string{"a", "b"} {
			grouped := message(topic, group+number)
			grouped.SetMessageGroup(group)
			send(producer, grouped)
		}
	}
	check(producer.GracefulStop())
}
