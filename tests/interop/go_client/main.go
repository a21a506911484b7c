// Sends messages over TLS and consumes them: namesrv topic count. Prints a line for each: "sent ID" or "received ID body".
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const patience = 60 * time.Second

func main() {
	names, topic := primitive.NewPassthroughResolver([]string{os.Args[1]}), os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	send(names, topic, count)
	consume(names, topic, count)
}

func send(names primitive.NsResolver, topic string, count int) {
	sender, err := rocketmq.NewProducer(producer.WithNsResolver(names), producer.WithGroupName("GP"), producer.WithTls(true))
	check(err)
	check(sender.Start())
	for number := 0; number < count; number++ {
		body := []byte("message " + strconv.Itoa(number))
		result, err := sender.SendSync(context.Background(), primitive.NewMessage(topic, body))
		check(err)
		if result.Status != primitive.SendOK {
			log.Fatalf("send: status %d", result.Status)
		}
		fmt.Println("sent", result.MsgID)
	}
	check(sender.Shutdown())
}

func consume(names primitive.NsResolver, topic string, count int) {
	received := make(chan *primitive.MessageExt)
	receiver, err := rocketmq.NewPushConsumer(consumer.WithNsResolver(names), consumer.WithGroupName("GC"),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset), consumer.WithTls(true))
	check(err)
	listen := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, message := range messages {
			received <- message
		}
		return consumer.ConsumeSuccess, nil
	}
	check(receiver.Subscribe(topic, consumer.MessageSelector{}, listen))
	check(receiver.Start())
	end := time.After(patience)
	for number := 0; number < count; number++ {
		select {
		case message := <-received:
			fmt.Println("received", message.MsgId, string(message.Body))
		case <-end:
			log.Fatalf("%d of %d messages received after %v", number, count, patience)
		}
	}
	check(receiver.Shutdown())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
