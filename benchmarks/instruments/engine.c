/* A stand-in for an inference engine: OpenAI chat completions on 127.0.0.1 at a set pace, from one thread.
 *
 *   engine [--port N] [--tokens 400] [--ttft-ms 0] [--itl-ms 0]        prints "listening PORT"
 *
 *   POST /v1/chat/completions             a whole answer at once, or a stream of `tokens` events
 *   GET  /pace?tokens=&ttft_ms=&itl_ms=   for streams that begin from now on; without delays as fast as they are read
 *   GET  /counts                          what it has done so far
 *   GET  /health, /metrics                what gateways probe
 *
 * A token is one SSE event, one HTTP chunk and one write, as engines send it. It carries a stamp, "@" and 12 hex
 * digits: the microseconds of CLOCK_MONOTONIC when it was written. A client on the same machine reads from it how long
 * it was under way.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_REQUEST = 1 << 20, MAX_TOKENS = 100000, PROMPT_TOKENS = 1500, STAMP = 12 };

typedef struct buffer { char *at; size_t len, cap; } buffer;

typedef struct peer {
    int fd, streaming, close_after, wants_usage, blocked, tokens_left, first;
    buffer in, out;
    size_t sent; /* of out */
    char event[400];
    size_t event_len, stamp_at;
    uint64_t id, due, itl_us;
    struct queue *queued;
    struct peer *before, *after;
} peer;

/* Streams by the time of their next event. All of one queue wait equally long, so a new one nearly always goes last. */
typedef struct queue { peer *head, *tail; } queue;

static queue first_tokens, next_tokens, eager;
static int poll_fd, n_tokens = 400;
static double ttft_ms, itl_ms;
static buffer whole; /* the one whole answer, head included */
static struct { uint64_t connections, whole, streams, finished, aborted, refused, events, open; } counts;

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void reserve(buffer *b, size_t more) {
    if (b->len + more <= b->cap) return;
    b->cap = (b->len + more) * 2;
    b->at = realloc(b->at, b->cap);
    if (!b->at) abort();
}

static void put(buffer *b, const char *bytes, size_t n) {
    reserve(b, n);
    memcpy(b->at + b->len, bytes, n);
    b->len += n;
}

static void dequeue(peer *p) {
    queue *q = p->queued;
    if (!q) return;
    *(p->before ? &p->before->after : &q->head) = p->after;
    *(p->after ? &p->after->before : &q->tail) = p->before;
    p->queued = NULL;
}

static void enqueue(queue *q, peer *p, uint64_t due) {
    peer *before = q->tail;
    while (before && before->due > due) before = before->before;
    p->due = due;
    p->queued = q;
    p->before = before;
    p->after = before ? before->after : q->head;
    *(before ? &before->after : &q->head) = p;
    *(p->after ? &p->after->before : &q->tail) = p;
}

static void drop(peer *p) {
    if (p->streaming) counts.aborted++, counts.open--;
    dequeue(p);
    close(p->fd);
    free(p->in.at);
    free(p->out.at);
    free(p);
}

static void watch(peer *p, int blocked) {
    if (p->blocked == blocked) return;
    p->blocked = blocked;
    struct epoll_event e = {.events = EPOLLIN | (blocked ? EPOLLOUT : 0), .data.ptr = p};
    epoll_ctl(poll_fd, EPOLL_CTL_MOD, p->fd, &e);
}

/* 0 when the connection broke and the peer is gone. */
static int flush(peer *p) {
    while (p->sent < p->out.len) {
        ssize_t n = send(p->fd, p->out.at + p->sent, p->out.len - p->sent, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN) return watch(p, 1), 1;
        if (n < 0) return drop(p), 0;
        p->sent += (size_t)n;
    }
    p->sent = p->out.len = 0;
    watch(p, 0);
    return 1;
}

static void put_event(buffer *b, const char *data, int n) {
    reserve(b, (size_t)n + 32);
    b->len += (size_t)sprintf(b->at + b->len, "%x\r\ndata: %.*s\n\n\r\n", n + 8, n, data);
}

static int chunk(char *into, size_t size, const peer *p, const char *choices) {
    return snprintf(into, size,
                    "{\"id\":\"chatcmpl-%016llx\",\"object\":\"chat.completion.chunk\",\"created\":1780000000,"
                    "\"model\":\"bench\",\"choices\":%s}", (unsigned long long)p->id, choices);
}

static void begin_stream(peer *p, uint64_t now) {
    static const char head[] = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n"
                               "transfer-encoding: chunked\r\n\r\n";
    char json[360];
    p->streaming = p->first = 1;
    p->id = ++counts.streams;
    p->tokens_left = n_tokens;
    p->itl_us = (uint64_t)(itl_ms * 1000);
    counts.open++;
    int n = chunk(json, sizeof json, p, "[{\"index\":0,\"delta\":{\"content\":\" @000000000000\"},\"logprobs\":null,"
                                        "\"finish_reason\":null}]");
    buffer event = {.at = p->event, .cap = sizeof p->event};
    put_event(&event, json, n);
    p->event_len = event.len;
    p->stamp_at = (size_t)((char *)memchr(p->event, '@', event.len) - p->event) + 1;
    put(&p->out, head, sizeof head - 1);
    if (ttft_ms > 0) enqueue(&first_tokens, p, now + (uint64_t)(ttft_ms * 1000));
    else enqueue(p->itl_us ? &next_tokens : &eager, p, p->itl_us ? now : 0);
    flush(p);
}

static void put_end(peer *p) {
    char json[500], usage[160];
    put_event(&p->out, json, chunk(json, sizeof json, p, "[{\"index\":0,\"delta\":{},\"logprobs\":null,"
                                                         "\"finish_reason\":\"stop\"}]"));
    if (p->wants_usage) {
        snprintf(usage, sizeof usage, "[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,"
                 "\"total_tokens\":%d}", PROMPT_TOKENS, n_tokens, PROMPT_TOKENS + n_tokens);
        put_event(&p->out, json, chunk(json, sizeof json, p, usage));
    }
    put_event(&p->out, "[DONE]", 6);
    put(&p->out, "0\r\n\r\n", 5);
}

static int serve(peer *p);

/* The next token of a stream whose time has come, and the end behind the last one. */
static void speak(peer *p) {
    static const char hex[] = "0123456789abcdef";
    char json[360];
    dequeue(p);
    if (p->first) {
        p->first = 0;
        put_event(&p->out, json, chunk(json, sizeof json, p, "[{\"index\":0,\"delta\":{\"role\":\"assistant\","
                                       "\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]"));
    }
    uint64_t stamp = now_us();
    for (int i = STAMP - 1; i >= 0; i--, stamp >>= 4) p->event[p->stamp_at + (size_t)i] = hex[stamp & 15];
    put(&p->out, p->event, p->event_len);
    counts.events++;
    if (--p->tokens_left > 0) {
        /* A paced stream keeps its schedule even when the reader is slow; an eager one waits for the reader. */
        if (!flush(p)) return;
        if (p->itl_us) enqueue(&next_tokens, p, p->due + p->itl_us);
        else if (!p->blocked) enqueue(&eager, p, 0);
        return;
    }
    put_end(p);
    p->streaming = 0;
    counts.finished++;
    counts.open--;
    if (!flush(p)) return;
    if (p->close_after && !p->blocked) drop(p);
    else serve(p);
}

static void build_whole(void) {
    static const char *words[] = {"tokens ", "cost ", "money, ", "so ", "count ", "every ", "one ", "of them. "};
    buffer body = {0};
    char tail[300], head[160];
    const char *start = "{\"id\":\"chatcmpl-0\",\"object\":\"chat.completion\",\"created\":1780000000,"
                        "\"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\","
                        "\"content\":\"";
    put(&body, start, strlen(start));
    for (int i = 0; i < n_tokens; i++) put(&body, words[i % 8], strlen(words[i % 8]));
    int n = sprintf(tail, "\",\"refusal\":null},\"logprobs\":null,\"finish_reason\":\"stop\"}],"
                    "\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d}}",
                    PROMPT_TOKENS, n_tokens, PROMPT_TOKENS + n_tokens);
    put(&body, tail, (size_t)n);
    n = sprintf(head, "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n", body.len);
    whole.len = 0;
    put(&whole, head, (size_t)n);
    put(&whole, body.at, body.len);
    free(body.at);
}

static void answer(peer *p, const char *status, const char *body) {
    char head[160];
    int n = snprintf(head, sizeof head, "HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %zu\r\n\r\n",
                     status, strlen(body));
    put(&p->out, head, (size_t)n);
    put(&p->out, body, strlen(body));
}

static double setting(const char *query, const char *name, double otherwise) {
    const char *found = strstr(query, name);
    return found ? atof(found + strlen(name)) : otherwise;
}

static void control(peer *p, const char *path) {
    char body[400];
    if (!strncmp(path, "/pace?", 6)) {
        n_tokens = (int)setting(path, "tokens=", n_tokens);
        ttft_ms = setting(path, "ttft_ms=", ttft_ms);
        itl_ms = setting(path, "itl_ms=", itl_ms);
        n_tokens = n_tokens < 1 ? 1 : n_tokens > MAX_TOKENS ? MAX_TOKENS : n_tokens;
        build_whole();
    } else if (!strcmp(path, "/metrics")) {
        snprintf(body, sizeof body, "vllm:num_requests_running %llu\nvllm:num_requests_waiting 0\n",
                 (unsigned long long)counts.open);
        return answer(p, "200 OK", body);
    } else if (strcmp(path, "/counts") && strcmp(path, "/health")) {
        counts.refused++;
        return answer(p, "404 Not Found", "{\"error\":{\"message\":\"no such path\"}}");
    }
#define N(name) (unsigned long long)counts.name
    snprintf(body, sizeof body, "{\"connections\":%llu,\"whole\":%llu,\"streams\":%llu,\"finished\":%llu,"
             "\"aborted\":%llu,\"refused\":%llu,\"events\":%llu,\"open\":%llu}", N(connections), N(whole), N(streams),
             N(finished), N(aborted), N(refused), N(events), N(open));
    answer(p, "200 OK", body);
}

static int is_true(const char *body, size_t n, const char *name) {
    const char *found = memmem(body, n, name, strlen(name));
    if (!found) return 0;
    found += strlen(name);
    found += strspn(found, " :");
    return !strncmp(found, "true", 4);
}

/* Answer the requests that have arrived whole; 0 when the peer is gone. */
static int serve(peer *p) {
    while (!p->streaming && p->in.len) {
        reserve(&p->in, 1);
        p->in.at[p->in.len] = 0; /* so that string functions stop */
        char *end = memmem(p->in.at, p->in.len, "\r\n\r\n", 4);
        if (!end) return 1;
        *end = 0;
        char *length = strcasestr(p->in.at, "\r\ncontent-length:");
        char *closing = strcasestr(p->in.at, "\r\nconnection: close");
        char *body = end + 4;
        size_t n = length ? strtoul(length + 17, NULL, 10) : 0, size = (size_t)(body - p->in.at) + n;
        *end = '\r';
        if (size > MAX_REQUEST) return drop(p), 0;
        if (p->in.len < size) return 1;
        char *path = memchr(p->in.at, ' ', (size_t)(end - p->in.at));
        char *path_end = path ? strpbrk(path + 1, " \r") : NULL;
        if (!path_end) return drop(p), 0;
        p->close_after = closing || !strncmp(path_end, " HTTP/1.0", 9);
        *path_end = 0;
        path++;
        if (strcmp(path, "/v1/chat/completions")) {
            control(p, path);
        } else if (!memmem(body, n, "\"messages\"", 10)) {
            counts.refused++;
            answer(p, "400 Bad Request", "{\"error\":{\"message\":\"`messages` is required\"}}");
        } else if (is_true(body, n, "\"stream\"")) {
            p->wants_usage = is_true(body, n, "\"include_usage\"");
            p->in.len -= size;
            memmove(p->in.at, body + n, p->in.len);
            begin_stream(p, now_us());
            return 1;
        } else {
            counts.whole++;
            put(&p->out, whole.at, whole.len);
        }
        p->in.len -= size;
        memmove(p->in.at, body + n, p->in.len);
        if (!flush(p)) return 0;
        if (p->close_after && !p->blocked) return drop(p), 0;
    }
    return 1;
}

static void readable(peer *p) {
    if (p->in.len > MAX_REQUEST) return drop(p);
    reserve(&p->in, 16384);
    ssize_t n = recv(p->fd, p->in.at + p->in.len, p->in.cap - p->in.len, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return drop(p);
    p->in.len += (size_t)n;
    serve(p);
}

static void writable(peer *p) {
    if (!flush(p) || p->blocked) return;
    if (p->streaming) {
        if (!p->queued) enqueue(&eager, p, 0);
    } else if (p->close_after) {
        drop(p);
    }
}

static void accept_all(int listener) {
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
        int one = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        peer *p = calloc(1, sizeof *p);
        if (!p) abort();
        p->fd = fd;
        counts.connections++;
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = p};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &e);
    }
}

/* Let all speak whose time has come, the eager ones once each; the microseconds until the next, -1 for never. */
static int64_t speak_due(void) {
    uint64_t now = now_us();
    peer *last = eager.tail;
    while (last && eager.head) {
        peer *p = eager.head;
        speak(p);
        if (p == last) break;
    }
    for (;;) {
        peer *a = first_tokens.head, *b = next_tokens.head, *p = !a ? b : !b ? a : a->due <= b->due ? a : b;
        if (!p) return eager.head ? 0 : -1;
        if (p->due > now && p->due > (now = now_us())) return eager.head ? 0 : (int64_t)(p->due - now);
        speak(p);
    }
}

static int listen_on(int port) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    socklen_t size = sizeof at;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&at, sizeof at) || listen(fd, 4096)) return perror("engine"), exit(2), 0;
    getsockname(fd, (void *)&at, &size);
    printf("listening %d\n", ntohs(at.sin_port));
    fflush(stdout);
    return fd;
}

int main(int argc, char **argv) {
    int port = 0;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--port")) port = atoi(value);
        else if (!strcmp(argv[i], "--tokens")) n_tokens = atoi(value);
        else if (!strcmp(argv[i], "--ttft-ms")) ttft_ms = atof(value);
        else if (!strcmp(argv[i], "--itl-ms")) itl_ms = atof(value);
        else return fprintf(stderr, "engine: unknown option %s\n", argv[i]), 2;
    }
    if (n_tokens < 1 || n_tokens > MAX_TOKENS)
        return fprintf(stderr, "engine: --tokens must be 1 to %d\n", MAX_TOKENS), 2;
    signal(SIGPIPE, SIG_IGN);
    build_whole();
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    int listener = listen_on(port);
    struct epoll_event e = {.events = EPOLLIN}, ready[256];
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &e);
    for (;;) {
        int64_t wait = speak_due();
        struct timespec t = {.tv_sec = wait / 1000000, .tv_nsec = wait % 1000000 * 1000};
        int n = epoll_pwait2(poll_fd, ready, 256, wait < 0 ? NULL : &t, NULL);
        for (int i = 0; i < n; i++) {
            peer *p = ready[i].data.ptr;
            if (!p) accept_all(listener);
            else if (ready[i].events & EPOLLOUT) writable(p); /* may free it; what else there is comes again */
            else readable(p);
        }
    }
}
