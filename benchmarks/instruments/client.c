/* A load client for one loopback address: asks the same again and again, checks every answer, tells times as JSON.
 *
 *   client --url http://127.0.0.1:PORT/PATH --body FILE (--connections N | --rate R) --seconds S
 *          [--stream] [--tokens N] [--bearer KEY] [--requests N] [--timeout S] [--drain S] [--seed N]
 *
 * --connections: closed loop, each connection asks again as soon as it has its answer.
 * --rate: open loop, requests arrive as a Poisson process, whether or not earlier ones are done; times count from the
 * moment a request was due, so a server that stalls cannot hide the requests that had to wait for it.
 *
 * A stream is good when it has --tokens stamps (see engine.c), an event [DONE] and a proper end; a whole answer when it
 * has `choices` and `usage`. One thread; never more than MAX_SECONDS, MAX_REQUESTS, MAX_OPEN.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_SECONDS = 120, MAX_REQUESTS = 2000000, MAX_OPEN = 8192, MAX_HEAD = 8192, MAX_TEXT = 1 << 20, STAMP = 12 };

/* Times in microseconds: exact below 256, then 128 cells an octave, which is finer than one part in a hundred. */
enum { FINE = 128, CELLS = 34 * FINE };
typedef struct times { uint64_t n, sum, least, most; uint32_t cells[CELLS]; } times;

enum state { CONNECTING, IDLE, ASKING };
enum part { HEAD, SIZED, CHUNK_SIZE, CHUNK, CHUNK_END, TRAILER, UNTIL_CLOSE };

typedef struct call {
    int fd, status, tokens, done, keep, reused, watching_out;
    enum state state;
    enum part part;
    size_t sent, head_len, text_len, text_cap;
    uint64_t due, began, last_token, left;
    char head[MAX_HEAD + 1], *text; /* the text is a whole body, or a stream's line under way */
    struct call *before, *after, *next_idle;
} call;

static struct {
    const char *bearer;
    double rate, seconds, timeout, drain;
    long connections, requests;
    int stream, tokens;
} ask = {.seconds = 5, .timeout = 30, .drain = 10, .requests = MAX_REQUESTS};
static struct { uint64_t issued, good, tokens, bytes, dialled, retried, peak;
                uint64_t unreachable, refused, broken, wrong, late, unfinished; } counts;
static times whole, first_token, first_delay, delay, gap, lateness;
static struct sockaddr_in server;
static char *request, said[201];
static size_t request_len;
static int poll_fd, open_calls, stopping, said_status;
static call *calls, *idle;
static uint64_t began_at, ended_at;

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static int cell_of(uint64_t v) {
    if (v < 2 * FINE) return (int)v;
    int octave = 63 - __builtin_clzll(v) - 7; /* v >> octave lies in 128..255 */
    int cell = octave * FINE + (int)(v >> octave);
    return cell < CELLS ? cell : CELLS - 1;
}

static double middle_of(int cell) {
    if (cell < 2 * FINE) return cell;
    int octave = cell / FINE - 1;
    return ldexp(cell - octave * FINE + 0.5, octave) - 0.5;
}

static void note(times *t, uint64_t v) {
    if (!t->n || v < t->least) t->least = v;
    if (v > t->most) t->most = v;
    t->n++, t->sum += v, t->cells[cell_of(v)]++;
}

static double quantile(const times *t, double q) {
    uint64_t rank = (uint64_t)ceil(q * (double)t->n), seen = 0;
    for (int i = 0; i < CELLS; i++)
        if ((seen += t->cells[i]) >= rank && seen) return fmin(fmax(middle_of(i), (double)t->least), (double)t->most);
    return (double)t->most;
}

static void tell(const char *name, const times *t) {
    if (!t->n) {
        printf("\"%s\":null,", name);
        return;
    }
    static const struct { const char *name; double q; } told[] = {{"p50", .5}, {"p90", .9}, {"p95", .95}, {"p99", .99},
                                                                  {"p999", .999}};
    printf("\"%s\":{\"n\":%llu,\"mean\":%.4f,\"min\":%.4f,\"max\":%.4f", name, (unsigned long long)t->n,
           (double)t->sum / (double)t->n / 1e3, (double)t->least / 1e3, (double)t->most / 1e3);
    for (int i = 0; i < 5; i++) printf(",\"%s\":%.4f", told[i].name, quantile(t, told[i].q) / 1e3);
    printf("},");
}

static void watch(call *c, int out) {
    if (c->watching_out == out) return;
    c->watching_out = out;
    struct epoll_event e = {.events = EPOLLIN | (out ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(poll_fd, EPOLL_CTL_MOD, c->fd, &e);
}

static void hang_up(call *c) {
    if (c->state != IDLE) open_calls--;
    *(c->before ? &c->before->after : &calls) = c->after;
    if (c->after) c->after->before = c->before;
    close(c->fd);
    free(c->text);
    free(c);
}

static call *dial(void) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return NULL;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(fd, (void *)&server, sizeof server) && errno != EINPROGRESS) return close(fd), NULL;
    call *c = calloc(1, sizeof *c);
    if (!c) abort();
    c->fd = fd;
    c->state = CONNECTING;
    c->watching_out = 1;
    if ((c->after = calls)) calls->before = c;
    calls = c;
    counts.dialled++;
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &e);
    return c;
}

/* On an error, what there is to read tells of it: so nothing but its own event ever frees a call. */
static void push(call *c) {
    while (c->sent < request_len) {
        ssize_t n = send(c->fd, request + c->sent, request_len - c->sent, MSG_NOSIGNAL);
        if (n < 0) return watch(c, errno == EAGAIN);
        c->sent += (size_t)n;
    }
    watch(c, 0);
}

static void start(uint64_t due) {
    uint64_t now = now_us();
    call *c = open_calls < MAX_OPEN ? idle : NULL;
    counts.issued++;
    if (c) idle = c->next_idle, c->reused = 1, c->state = ASKING;
    else if (open_calls >= MAX_OPEN || !(c = dial())) {
        counts.unreachable++;
        if (counts.unreachable > 1000) stopping = 1;
        return;
    }
    if (++open_calls > (int)counts.peak) counts.peak = (uint64_t)open_calls;
    if (!began_at) began_at = now;
    note(&lateness, now > due ? now - due : 0);
    c->due = due, c->began = now, c->last_token = 0, c->part = HEAD;
    c->sent = c->head_len = c->text_len = 0;
    c->status = c->tokens = c->done = 0;
    if (c->state == ASKING) push(c);
}

static void issue(uint64_t due) {
    if (counts.issued >= (uint64_t)ask.requests) stopping = 1;
    if (!stopping) start(due);
}

/* The end of a call that gave no answer. */
static void lose(call *c, uint64_t *why) {
    int again = c->reused && !c->head_len && why == &counts.broken;
    uint64_t due = c->due;
    hang_up(c);
    if (again) { /* the server closed a kept connection as we used it: no call of ours was under way there */
        counts.retried++, counts.issued--;
        start(due);
        return;
    }
    ++*why;
    if (counts.unreachable > 1000) stopping = 1;
    if (ask.connections) issue(now_us());
}

static void keep_words(const call *c) {
    size_t n = c->text_len < sizeof said - 1 ? c->text_len : sizeof said - 1;
    for (size_t i = 0; i < n; i++) said[i] = c->text[i] < ' ' || strchr("\"\\", c->text[i]) ? '\'' : c->text[i];
    said[n] = 0;
    said_status = c->status;
}

static int is_good(const call *c) {
    if (ask.stream) return c->done && (!ask.tokens || c->tokens == ask.tokens);
    return memmem(c->text, c->text_len, "\"choices\"", 9) && memmem(c->text, c->text_len, "\"usage\"", 7);
}

static void end_call(call *c) {
    ended_at = now_us();
    if (c->status != 200) counts.refused++, keep_words(c);
    else if (!is_good(c)) counts.wrong++, keep_words(c);
    else counts.good++, note(&whole, ended_at - c->due);
    if (c->keep) open_calls--, c->state = IDLE, c->next_idle = idle, idle = c;
    else hang_up(c);
    if (ask.connections) issue(ended_at);
}

static void read_line(call *c, const char *line, size_t n, uint64_t now) {
    if (n >= 12 && !memcmp(line, "data: [DONE]", 12)) c->done = 1;
    const char *at = line, *end = line + n;
    while ((at = memchr(at, '@', (size_t)(end - at)))) {
        uint64_t stamp = 0;
        int digits = 0;
        for (at++; at < end && digits < STAMP; at++, digits++) {
            int d = *at >= '0' && *at <= '9' ? *at - '0' : *at >= 'a' && *at <= 'f' ? *at - 'a' + 10 : -1;
            if (d < 0) break;
            stamp = stamp << 4 | (uint64_t)d;
        }
        if (digits < STAMP) continue;
        note(&delay, now > stamp ? now - stamp : 0);
        if (c->tokens++) note(&gap, now - c->last_token);
        else note(&first_token, now - c->due), note(&first_delay, now > stamp ? now - stamp : 0);
        c->last_token = now;
        counts.tokens++;
    }
}

static int keep_text(call *c, const char *bytes, size_t n) {
    if (c->text_len + n > MAX_TEXT) return 0;
    if (c->text_len + n > c->text_cap) {
        c->text_cap = (c->text_len + n) * 2;
        c->text = realloc(c->text, c->text_cap);
        if (!c->text) abort();
    }
    memcpy(c->text + c->text_len, bytes, n);
    c->text_len += n;
    return 1;
}

/* Body bytes without their framing; 0 when there are more than any answer has. */
static int read_body(call *c, const char *bytes, size_t n, uint64_t now) {
    counts.bytes += n;
    if (!ask.stream || c->status != 200) return keep_text(c, bytes, n);
    for (const char *newline; (newline = memchr(bytes, '\n', n));) {
        size_t line = (size_t)(newline - bytes);
        if (c->text_len) {
            if (!keep_text(c, bytes, line)) return 0;
            read_line(c, c->text, c->text_len, now);
            c->text_len = 0;
        } else {
            read_line(c, bytes, line, now);
        }
        bytes += line + 1, n -= line + 1;
    }
    return keep_text(c, bytes, n);
}

static const char *header(const call *c, const char *name) {
    const char *found = strcasestr(c->head, name);
    return found ? found + strlen(name) + strspn(found + strlen(name), " ") : NULL;
}

/* Take what belongs to the head; the number of bytes taken, 0 for a head that is none. */
static size_t read_head(call *c, const char *bytes, size_t n) {
    size_t before = c->head_len, room = MAX_HEAD - before, taken = n < room ? n : room;
    memcpy(c->head + before, bytes, taken);
    c->head_len += taken;
    c->head[c->head_len] = 0;
    char *end = strstr(c->head, "\r\n\r\n");
    if (!end) return taken;
    end[2] = 0;
    c->head_len = (size_t)(end - c->head) + 4;
    if (strncmp(c->head, "HTTP/1.", 7)) return 0;
    c->status = atoi(c->head + 9);
    const char *length = header(c, "\r\ncontent-length:"), *coding = header(c, "\r\ntransfer-encoding:");
    const char *connection = header(c, "\r\nconnection:");
    c->keep = !connection || strncasecmp(connection, "close", 5);
    if (coding && !strncasecmp(coding, "chunked", 7)) c->part = CHUNK_SIZE, c->left = 0;
    else if (length) c->part = SIZED, c->left = strtoull(length, NULL, 10);
    else c->part = UNTIL_CLOSE, c->keep = 0;
    return c->head_len - before;
}

static int hex_digit(char ch) {
    return ch >= '0' && ch <= '9' ? ch - '0' : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10 : -1;
}

/* 1 when the answer is complete, -1 when it is nonsense. `left` is what is left of a body or chunk, in CHUNK_SIZE the
 * number read so far, and in TRAILER the length of the line under way. */
static int read_answer(call *c, const char *bytes, size_t n, uint64_t now) {
    while (n || (c->part == SIZED && !c->left)) {
        size_t taken = 1;
        switch (c->part) {
        case HEAD:
            if (!(taken = read_head(c, bytes, n)) || (c->part == HEAD && c->head_len == MAX_HEAD)) return -1;
            break;
        case SIZED:
        case CHUNK:
            taken = n < c->left ? n : (size_t)c->left;
            if (!read_body(c, bytes, taken, now)) return -1;
            c->left -= taken;
            if (!c->left && c->part == SIZED) return 1;
            if (!c->left) c->part = CHUNK_END;
            break;
        case CHUNK_SIZE:
            if (*bytes == '\n') c->part = c->left ? CHUNK : TRAILER;
            else if (hex_digit(*bytes) >= 0) c->left = c->left << 4 | (uint64_t)hex_digit(*bytes);
            else if (*bytes != '\r') return -1;
            break;
        case CHUNK_END:
            if (*bytes == '\n') c->part = CHUNK_SIZE;
            break;
        case TRAILER:
            if (*bytes == '\n' && !c->left) return 1;
            c->left = *bytes == '\n' ? 0 : c->left + (*bytes != '\r');
            break;
        case UNTIL_CLOSE:
            taken = n;
            if (!read_body(c, bytes, n, now)) return -1;
        }
        bytes += taken, n -= taken;
    }
    return 0;
}

static void forget_idle(call *c) {
    call **at = &idle;
    while (*at != c) at = &(*at)->next_idle;
    *at = c->next_idle;
    hang_up(c);
}

static void readable(call *c) {
    static char bytes[1 << 17];
    ssize_t n = recv(c->fd, bytes, sizeof bytes, 0);
    uint64_t now = now_us();
    if (n < 0 && errno == EAGAIN) return;
    if (c->state == IDLE) return forget_idle(c);
    if (n <= 0) {
        if (!n && c->state == ASKING && c->part == UNTIL_CLOSE) return end_call(c);
        return lose(c, c->state == CONNECTING ? &counts.unreachable : &counts.broken);
    }
    int complete = read_answer(c, bytes, (size_t)n, now);
    if (complete < 0) return lose(c, &counts.wrong);
    if (complete) end_call(c);
}

static void writable(call *c) {
    if (c->state == CONNECTING) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error) return lose(c, &counts.unreachable);
        c->state = ASKING;
    }
    push(c);
}

static void give_up_late_ones(uint64_t now) {
    for (call *c = calls, *after; c; c = after) {
        after = c->after;
        if (c->state != IDLE && now > c->began + (uint64_t)(ask.timeout * 1e6)) lose(c, &counts.late);
    }
}

static uint64_t pause_us(void) {
    return (uint64_t)(-log(1 - drand48()) / ask.rate * 1e6);
}

static void run(void) {
    struct epoll_event ready[256];
    uint64_t began = now_us(), end = began + (uint64_t)(ask.seconds * 1e6), give_up = end + (uint64_t)(ask.drain * 1e6);
    uint64_t next = began, look = began;
    for (long i = 0; i < ask.connections; i++) issue(began);
    for (;;) {
        uint64_t now = now_us();
        for (; ask.rate > 0 && !stopping && next <= now && next < end; next += pause_us()) issue(next);
        if (now >= end || (ask.rate > 0 && next >= end)) stopping = 1;
        if (stopping && (!open_calls || now >= give_up)) return;
        if (now >= look) give_up_late_ones(now), look = now + 250000;
        uint64_t wake = ask.rate > 0 && !stopping && next < look ? next : look;
        if (!stopping && end < wake) wake = end;
        int64_t wait = (int64_t)(wake - now_us());
        struct timespec t = {.tv_nsec = wait > 0 ? wait * 1000 : 0};
        int n = epoll_pwait2(poll_fd, ready, 256, &t, NULL);
        for (int i = 0; i < n; i++) {
            call *c = ready[i].data.ptr;
            if (c->watching_out && ready[i].events & (EPOLLOUT | EPOLLERR)) writable(c);
            else readable(c);
        }
    }
}

static void report(void) {
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                 (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    double seconds = ended_at > began_at ? (double)(ended_at - began_at) / 1e6 : 0;
    counts.unfinished = (uint64_t)open_calls;
    printf("{");
    tell("answer_ms", &whole), tell("ttft_ms", &first_token), tell("first_delay_ms", &first_delay);
    tell("delay_ms", &delay), tell("gap_ms", &gap), tell("lateness_ms", &lateness);
#define N(name) printf("\"" #name "\":%llu,", (unsigned long long)counts.name)
    N(issued); N(good); N(tokens); N(bytes); N(dialled); N(retried); N(peak);
    N(unreachable); N(refused); N(broken); N(wrong); N(late); N(unfinished);
    printf("\"seconds\":%.4f,\"client_cpu_s\":%.4f,\"said_status\":%d,\"said\":\"%s\"}\n", seconds, cpu, said_status,
           said);
}

static int fail(const char *message) {
    fprintf(stderr, "client: %s\n", message);
    return 2;
}

static int prepare(const char *url, const char *body_path) {
    char host[64], path[200] = "/";
    unsigned port = 0;
    static char body[1 << 20];
    if (!url || sscanf(url, "http://%63[^:/]:%5u%199s", host, &port, path) < 2 || port > 65535)
        return fail("--url must be http://127.0.0.1:PORT/PATH");
    server.sin_family = AF_INET, server.sin_port = htons((uint16_t)port);
    if (inet_pton(AF_INET, host, &server.sin_addr) != 1 || ntohl(server.sin_addr.s_addr) >> 24 != 127)
        return fail("--url must be a loopback address: this client never leaves the machine");
    FILE *f = body_path ? fopen(body_path, "rb") : NULL;
    if (!f) return fail("--body must be a file");
    size_t n = fread(body, 1, sizeof body, f);
    fclose(f);
    char *key = NULL;
    if (asprintf(&key, ask.bearer ? "Authorization: Bearer %s\r\n" : "", ask.bearer) < 0) return fail("no memory");
    int head = asprintf(&request, "POST %s HTTP/1.1\r\nHost: %s:%u\r\nContent-Type: application/json\r\nAccept: */*\r\n"
                        "User-Agent: llmrouter-bench\r\nCache-Control: no-store\r\n%sContent-Length: %zu\r\n\r\n",
                        path, host, port, key, n);
    request_len = (size_t)head + n;
    if (head < 0 || !(request = realloc(request, request_len))) return fail("no memory");
    memcpy(request + head, body, n);
    free(key);
    return 0;
}

int main(int argc, char **argv) {
    const char *url = NULL, *body = NULL;
    long seed = 1;
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(name, "--stream")) { ask.stream = 1; continue; }
        i++;
        if (!strcmp(name, "--url")) url = value;
        else if (!strcmp(name, "--body")) body = value;
        else if (!strcmp(name, "--bearer")) ask.bearer = value;
        else if (!strcmp(name, "--connections")) ask.connections = atol(value);
        else if (!strcmp(name, "--rate")) ask.rate = atof(value);
        else if (!strcmp(name, "--seconds")) ask.seconds = atof(value);
        else if (!strcmp(name, "--requests")) ask.requests = atol(value);
        else if (!strcmp(name, "--tokens")) ask.tokens = atoi(value);
        else if (!strcmp(name, "--timeout")) ask.timeout = atof(value);
        else if (!strcmp(name, "--drain")) ask.drain = atof(value);
        else if (!strcmp(name, "--seed")) seed = atol(value);
        else return fprintf(stderr, "client: unknown option %s\n", name), 2;
    }
    if ((ask.connections > 0) == (ask.rate > 0)) return fail("give either --connections or --rate");
    if (ask.connections > MAX_OPEN || ask.requests > MAX_REQUESTS || ask.requests < 1)
        return fail("too many or too few");
    if (!(ask.seconds > 0 && ask.seconds + ask.drain <= MAX_SECONDS && ask.drain >= 0))
        return fail("--seconds and --drain may be 120 together");
    if (prepare(url, body)) return 2;
    signal(SIGPIPE, SIG_IGN);
    srand48(seed);
    poll_fd = epoll_create1(EPOLL_CLOEXEC);
    run();
    report();
    return 0;
}
