// A server that plays the phases of a vLLM start without a model: what a kubelet sees of it is the same.
//
// Like vLLM it takes `--port N` from its arguments, ignores the others, and listens only when it is ready.
// Variables decide the rest:
//
//	STAND_IN_READY_AFTER=30s   listens only then
//	STAND_IN_LOG=FILE          prints this file's lines until then, evenly; without it, one line that says when
//	STAND_IN_IGNORE_TERM=1     does not end on SIGTERM
//	STAND_IN_TOKEN_EVERY=100ms the pace of an answer's words
//
// `get URL` prints what URL answers: a client for a pod whose image holds no other.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

const model, words = "stand-in", 8

func main() {
	if len(os.Args) == 3 && os.Args[1] == "get" {
		if err := get(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if os.Getenv("STAND_IN_IGNORE_TERM") != "" {
		ended = context.Background()
	}
	if !start(ended) {
		return
	}
	http.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	http.HandleFunc("GET /v1/models", func(writer http.ResponseWriter, _ *http.Request) {
		answer(writer, map[string]any{"object": "list", "data": []any{map[string]any{"id": model, "object": "model"}}})
	})
	http.HandleFunc("POST /v1/completions", complete("text_completion", func(text string) any { return text }))
	http.HandleFunc("POST /v1/chat/completions", complete("chat.completion", func(text string) any {
		return map[string]any{"role": "assistant", "content": text}
	}))
	server := &http.Server{Addr: ":" + port()}
	drained := make(chan struct{})
	go func() {
		<-ended.Done()
		_ = server.Shutdown(context.Background())
		close(drained)
	}()
	fmt.Println("INFO:     Application startup complete.")
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	<-drained
}

// start prints the log while the start lasts; false if it was ended meanwhile.
func start(ended context.Context) bool {
	content, err := os.ReadFile(os.Getenv("STAND_IN_LOG"))
	if err != nil {
		content = fmt.Appendf(nil, "Listening in %s\n", duration("STAND_IN_READY_AFTER"))
	}
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	pause := duration("STAND_IN_READY_AFTER") / time.Duration(len(lines))
	for _, line := range lines {
		fmt.Println(line)
		select {
		case <-ended.Done():
			return false
		case <-time.After(pause):
		}
	}
	return true
}

// complete answers with a few words, all at once or as server-sent events; a chat has `message` and `delta`.
func complete(object string, wrap func(string) any) http.HandlerFunc {
	return func(writer http.ResponseWriter, request *http.Request) {
		var asked struct{ Stream bool }
		if err := json.NewDecoder(request.Body).Decode(&asked); err != nil {
			http.Error(writer, err.Error(), http.StatusBadRequest)
			return
		}
		whole, part := "text", "text"
		if strings.HasPrefix(object, "chat") {
			whole, part = "message", "delta"
		}
		for range words {
			time.Sleep(duration("STAND_IN_TOKEN_EVERY"))
			if asked.Stream {
				writer.Header().Set("Content-Type", "text/event-stream")
				chunk, _ := json.Marshal(reply(object, part, wrap("word ")))
				fmt.Fprintf(writer, "data: %s\n\n", chunk)
				writer.(http.Flusher).Flush()
			}
		}
		if asked.Stream {
			fmt.Fprint(writer, "data: [DONE]\n\n")
			return
		}
		answer(writer, reply(object, whole, wrap(strings.Repeat("word ", words))))
	}
}

func get(url string) error {
	answer, err := (&http.Client{Timeout: 10 * time.Second}).Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

func reply(object, key string, text any) map[string]any {
	choice := map[string]any{"index": 0, key: text, "finish_reason": "stop"}
	return map[string]any{"id": "stand-in", "object": object, "model": model, "choices": []any{choice}}
}

func answer(writer http.ResponseWriter, content any) {
	writer.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(writer).Encode(content)
}

func port() string {
	for position, argument := range os.Args {
		if value, found := strings.CutPrefix(argument, "--port="); found {
			return value
		}
		if argument == "--port" && position+1 < len(os.Args) {
			return os.Args[position+1]
		}
	}
	return "8000"
}

func duration(name string) time.Duration {
	value, _ := time.ParseDuration(os.Getenv(name))
	return value
}
