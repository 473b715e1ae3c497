/* An engine that costs nothing: it passes for llama-server, and what stands in front of it is what is measured.
 *
 * One thread, epoll, no allocation per request. It takes llama-server's command line and listens at the Unix socket that
 * `--host PATH.sock` names, or at `--port` of 127.0.0.1. A POST with "stream":true gets `max_tokens` events, "seed"
 * microseconds apart (0: as fast as they are taken), each in an HTTP chunk of its own that carries the moment it was made
 * (T and 20 digits: nanoseconds of CLOCK_MONOTONIC). A POST of /embeddings gets a vector for each of its inputs,
 * ENGINE_STUB_WIDTH numbers wide. Every other POST gets a small answer; a body is read and counted, however long.
 * Where ENGINE_STUB_EVENTS names a file, a line `left NANOSECONDS EVENTS` is appended for each client that hangs up in
 * the middle of a stream.
 *
 * It must never be the bottleneck, and must never check what it is asked: that is for the servers under test.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    BACKLOG = 4096,
    EVENTS_AT_ONCE = 256,
    FIRST_IN_BYTES = 64 * 1024,
    KEPT_IN_BYTES = 1024 * 1024, /* what lies behind that of a body is counted, not kept */
    FIRST_OUT_BYTES = 4096,
    EVENTS_IN_A_TURN = 64, /* of a flood, before others have their turn */
};

static const char HELP[] =
    "-h,    --help                          print usage\n"
    "-m,    --model FNAME                   model path\n"
    "-a,    --alias STRING                  name of the model\n"
    "-c,    --ctx-size N                    context\n"
    "-np,   --parallel N                    slots\n"
    "--host HOST                            where to listen, or a path that ends in .sock\n"
    "--port PORT                            where to listen\n"
    "-fit,  --fit [on|off]                  fit\n"
    "--tags STRING                          tags\n"
    "--slots, --no-slots                    slots\n"
    "--no-webui                             no page\n"
    "-cram, --cache-ram N                   cache\n"
    "-ctxcp, --ctx-checkpoints N            checkpoints\n"
    "--sse-ping-interval N                  pings\n"
    "--embeddings                           vectors\n"
    "--reranking                            scores\n";

static const char SMALL[] =
    "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\"created\":1700000000,\"model\":\"tiny\","
    "\"content\":\"a\",\"choices\":[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hello there, this is a "
    "short answer\"},\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":9,"
    "\"total_tokens\":19}}";

static const char EVENT[] =
    "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
    "\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"T%020llu\"},\"finish_reason\":null}]}\n\n";

static const char LAST_EVENT[] =
    "data: {\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
    "\"model\":\"tiny\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}],"
    "\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":%ld,\"total_tokens\":%ld}}\n\n";

/* What epoll hands back: the listener, a connection, or a connection's timer. */
enum kind { LISTENER, CONNECTION, TIMER };

struct connection;

struct watched {
    enum kind kind;
    int fd;
    struct connection *owner;
};

enum stage { READING, COUNTING, ANSWERING, STREAMING };

struct connection {
    struct watched socket, timer; /* timer.fd is -1 where there is none */
    enum stage stage;
    int wants_out, close_after, dead;
    char *in, *out;
    size_t in_length, in_size, out_length, out_size, out_position;
    size_t head_bytes;      /* of the request in `in`, 0 until it is whole */
    unsigned long long body_bytes, uncounted; /* of the request; of it, still to come beyond what is kept */
    long events_left, events_made, gap_us;
    struct connection *next_dead;
};

static struct {
    int epoll;
    const char *alias, *tags, *host;
    long port, parallel, ctx_size, width;
    long streams; /* under way */
    unsigned long long requests, bytes_up;
    char *vector; /* one vector's numbers, as JSON */
    size_t vector_bytes;
    int events_fd;
    struct connection *buried; /* freed behind the turn: an event of this turn may still name them */
} stub = {.alias = "tiny", .tags = "", .host = "127.0.0.1", .port = 8080, .parallel = 1, .ctx_size = 4096, .width = 1024,
          .events_fd = -1};

static unsigned long long now_ns(void)
{
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (unsigned long long)moment.tv_sec * 1000000000ull + (unsigned long long)moment.tv_nsec;
}

static void *must(void *memory)
{
    if (memory == NULL) {
        fputs("engine_stub: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

/* ---- connections ---- */

static void watch(struct connection *c, int wants_out)
{
    struct epoll_event event = {.events = EPOLLIN | (wants_out ? EPOLLOUT : 0), .data.ptr = &c->socket};
    if (c->wants_out == wants_out)
        return;
    c->wants_out = wants_out;
    epoll_ctl(stub.epoll, EPOLL_CTL_MOD, c->socket.fd, &event);
}

static void stop_timer(struct connection *c)
{
    if (c->timer.fd >= 0)
        close(c->timer.fd);
    c->timer.fd = -1;
}

static void hang_up(struct connection *c)
{
    if (c->dead)
        return;
    if (c->stage == STREAMING)
        stub.streams--;
    stop_timer(c);
    close(c->socket.fd);
    c->dead = 1;
    c->next_dead = stub.buried;
    stub.buried = c;
}

static void bury(void)
{
    while (stub.buried != NULL) {
        struct connection *c = stub.buried;
        stub.buried = c->next_dead;
        free(c->in);
        free(c->out);
        free(c);
    }
}

/* The other side has gone: in the middle of a stream that is what a cancelled client looks like. */
static void lost(struct connection *c)
{
    if (!c->dead && c->stage == STREAMING && stub.events_fd >= 0) {
        char line[64];
        int length = snprintf(line, sizeof line, "left %llu %ld\n", now_ns(), c->events_made);
        if (write(stub.events_fd, line, (size_t)length) < 0)
            perror("engine_stub: events");
    }
    hang_up(c);
}

static void accept_all(int listener)
{
    int one = 1, fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct connection *c = must(calloc(1, sizeof *c));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &c->socket};
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* fails on a Unix socket, which needs it not */
        c->socket = (struct watched){CONNECTION, fd, c};
        c->timer = (struct watched){TIMER, -1, c};
        c->in = must(malloc((c->in_size = FIRST_IN_BYTES) + 1));
        c->out = must(malloc(c->out_size = FIRST_OUT_BYTES));
        epoll_ctl(stub.epoll, EPOLL_CTL_ADD, fd, &event);
    }
}

/* ---- what is sent ---- */

static char *room(struct connection *c, size_t bytes)
{
    if (c->out_position == c->out_length)
        c->out_position = c->out_length = 0;
    if (c->out_length + bytes > c->out_size) {
        c->out_size = 2 * (c->out_length + bytes);
        c->out = must(realloc(c->out, c->out_size));
    }
    return c->out + c->out_length;
}

__attribute__((format(printf, 2, 3))) static void say(struct connection *c, const char *format, ...)
{
    va_list values;
    char *place = room(c, 2048);
    va_start(values, format);
    c->out_length += (size_t)vsnprintf(place, 2048, format, values);
    va_end(values);
}

static const char *about_connection(const struct connection *c)
{
    return c->close_after ? "Connection: close" : "Keep-Alive: timeout=5, max=100";
}

static void say_whole(struct connection *c, const char *body, size_t bytes)
{
    say(c, "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: application/json; charset=utf-8\r\n"
           "Content-Length: %zu\r\n%s\r\n\r\n", bytes, about_connection(c));
    memcpy(room(c, bytes), body, bytes);
    c->out_length += bytes;
}

/* The next event of a stream, or its end, as one chunk. */
static void say_event(struct connection *c)
{
    char text[512];
    int bytes;
    if (c->events_left > 0) {
        bytes = snprintf(text, sizeof text, EVENT, now_ns());
        c->events_made++;
        say(c, "%x\r\n%s\r\n", (unsigned)bytes, text);
    } else {
        bytes = snprintf(text, sizeof text, LAST_EVENT, c->events_made, 10 + c->events_made);
        say(c, "%x\r\n%s\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", (unsigned)bytes, text);
    }
    c->events_left--;
}

/* Send what there is. 1: all of it is gone; 0: the other side takes no more for now, or is gone. */
static int flush(struct connection *c)
{
    while (c->out_position < c->out_length) {
        ssize_t sent = send(c->socket.fd, c->out + c->out_position, c->out_length - c->out_position, MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN) {
            watch(c, 1);
            return 0;
        }
        if (sent < 0) {
            lost(c);
            return 0;
        }
        c->out_position += (size_t)sent;
    }
    return 1;
}

static void next_request(struct connection *c);

/* Whatever was to be said has been: the connection ends, or the next request is looked at. */
static void answered(struct connection *c)
{
    if (c->stage == STREAMING)
        stub.streams--;
    c->stage = READING;
    stop_timer(c);
    if (c->close_after) {
        hang_up(c);
        return;
    }
    watch(c, 0);
    next_request(c);
}

/* Go on with an answer as far as the other side takes it; a flood lets the others have their turn. */
static void go_on(struct connection *c)
{
    if (!flush(c))
        return;
    if (c->stage == ANSWERING) {
        answered(c);
        return;
    }
    for (int made = 0; c->events_left >= 0 && c->gap_us == 0; made++) {
        if (made == EVENTS_IN_A_TURN) {
            watch(c, 1);
            return;
        }
        say_event(c);
        if (!flush(c))
            return;
    }
    watch(c, 0);
    if (c->events_left < 0)
        answered(c);
}

static void ticked(struct connection *c)
{
    uint64_t ticks;
    if (c->dead || c->timer.fd < 0 || read(c->timer.fd, &ticks, sizeof ticks) != sizeof ticks)
        return;
    /* Behind somebody who does not take what there is already, ticks are left out: he would only get them late. */
    while (ticks-- > 0 && !c->dead && c->stage == STREAMING && c->events_left >= 0 && c->out_position == c->out_length) {
        say_event(c);
        go_on(c);
    }
}

/* ---- what is asked ---- */

/* The number behind a key, `otherwise` where there is none. Looks for words, not for JSON's structure. */
static long number_of(const char *body, const char *key, long otherwise)
{
    const char *found = strstr(body, key);
    if (found == NULL)
        return otherwise;
    found += strlen(key);
    found += strspn(found, " :");
    return strchr("-0123456789", *found) != NULL ? atol(found) : otherwise;
}

static int is_streamed(const char *body)
{
    const char *found = strstr(body, "\"stream\"");
    if (found == NULL)
        return 0;
    found += strlen("\"stream\"");
    found += strspn(found, " :");
    return strncmp(found, "true", 4) == 0;
}

/* How many texts, or lists of tokens, "input" has. */
static long inputs_of(const char *body)
{
    const char *at = strstr(body, "\"input\"");
    long found = 0;
    int depth = 0, lists = 0;
    if (at == NULL)
        return 1;
    at += strlen("\"input\"");
    at += strspn(at, " :");
    if (*at != '[')
        return 1;
    do {
        if (*at == '"') {
            for (at++; *at != '\0' && *at != '"'; at++)
                at += *at == '\\' && at[1] != '\0';
            found += depth == 1;
        } else if (*at == '[') {
            lists += ++depth == 2;
        } else if (*at == ']') {
            depth--;
        }
    } while (*at != '\0' && *++at != '\0' && depth > 0);
    return found + lists > 0 ? found + lists : 1;
}

static void embed(struct connection *c, long inputs)
{
    size_t size = (size_t)inputs * (stub.vector_bytes + 80) + 256, at;
    char *body = must(malloc(size));
    at = (size_t)sprintf(body, "{\"object\":\"list\",\"model\":\"tiny\",\"data\":[");
    for (long index = 0; index < inputs; index++) {
        at += (size_t)sprintf(body + at, "%s{\"object\":\"embedding\",\"index\":%ld,\"embedding\":[", index ? "," : "", index);
        memcpy(body + at, stub.vector, stub.vector_bytes);
        at += stub.vector_bytes;
        at += (size_t)sprintf(body + at, "]}");
    }
    at += (size_t)sprintf(body + at, "],\"usage\":{\"prompt_tokens\":%ld,\"total_tokens\":%ld}}", inputs, inputs);
    say_whole(c, body, at);
    free(body);
}

static void begin_stream(struct connection *c, const char *body)
{
    c->stage = STREAMING;
    stub.streams++;
    c->events_left = number_of(body, "\"max_tokens\"", 100);
    c->gap_us = number_of(body, "\"seed\"", 0);
    c->events_made = 0;
    say(c, "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
           "%s\r\n\r\n", about_connection(c));
    say_event(c);
    if (c->gap_us > 0) {
        struct timespec gap = {c->gap_us / 1000000, c->gap_us % 1000000 * 1000};
        struct itimerspec every = {.it_interval = gap, .it_value = gap};
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &c->timer};
        c->timer.fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
        timerfd_settime(c->timer.fd, 0, &every, NULL);
        epoll_ctl(stub.epoll, EPOLL_CTL_ADD, c->timer.fd, &event);
    }
}

/* What it says of itself: what gridsched asks before it calls a process ready, and of its slots. */
static void describe(struct connection *c, const char *target)
{
    char text[4096] = "{\"status\":\"ok\"}";
    if (strncmp(target, "/v1/models", 10) == 0) {
        snprintf(text, sizeof text, "{\"object\":\"list\",\"data\":[{\"id\":\"%s\",\"object\":\"model\",\"tags\":[\"%s\"]}]}",
                 stub.alias, stub.tags);
    } else if (strncmp(target, "/props", 6) == 0) {
        snprintf(text, sizeof text, "{\"total_slots\":%ld,\"default_generation_settings\":{\"n_ctx\":%ld}}", stub.parallel,
                 stub.ctx_size / stub.parallel);
    } else if (strncmp(target, "/slots", 6) == 0) {
        size_t at = (size_t)sprintf(text, "[");
        for (long slot = 0; slot < stub.parallel && at < sizeof text - 64; slot++)
            at += (size_t)sprintf(text + at, "%s{\"id\":%ld,\"is_processing\":%s}", slot ? "," : "", slot,
                                  slot < stub.streams ? "true" : "false");
        sprintf(text + at, "]");
    } else if (strncmp(target, "/stub", 5) == 0) {
        snprintf(text, sizeof text, "{\"requests\":%llu,\"bytes_up\":%llu,\"streams\":%ld}", stub.requests, stub.bytes_up,
                 stub.streams);
    }
    say_whole(c, text, strlen(text));
}

/* A whole request lies at the beginning of `in`, as far as it is kept. */
static void answer(struct connection *c)
{
    const char *target = memchr(c->in, ' ', c->head_bytes);
    char *body = c->in + c->head_bytes;
    size_t kept = c->in_length - c->head_bytes < c->body_bytes ? c->in_length - c->head_bytes : (size_t)c->body_bytes;
    char behind = body[kept];
    body[kept] = '\0';
    target = target != NULL ? target + 1 : "/";
    c->stage = ANSWERING;
    if (strncmp(c->in, "POST ", 5) != 0) {
        describe(c, target);
    } else {
        stub.requests++;
        stub.bytes_up += c->body_bytes;
        if (strstr(target, "/embeddings") != NULL && strstr(target, "/embeddings") < body)
            embed(c, inputs_of(body));
        else if (is_streamed(body))
            begin_stream(c, body);
        else
            say_whole(c, SMALL, sizeof SMALL - 1);
    }
    body[kept] = behind;
    memmove(c->in, body + kept, c->in_length - c->head_bytes - kept);
    c->in_length -= c->head_bytes + kept;
    c->head_bytes = 0;
    go_on(c);
}

/* The value of a header, in a head that ends with a zero; NULL where there is none. */
static const char *header(const char *head, const char *name)
{
    const char *found = strcasestr(head, name);
    return found == NULL ? NULL : found + strlen(name) + strspn(found + strlen(name), " ");
}

static void read_head(struct connection *c, char *end)
{
    const char *length, *connection;
    *end = '\0';
    length = header(c->in, "\r\ncontent-length:");
    connection = header(c->in, "\r\nconnection:");
    c->body_bytes = length != NULL ? strtoull(length, NULL, 10) : 0;
    c->close_after = connection != NULL && strncasecmp(connection, "close", 5) == 0;
    *end = '\r';
    c->head_bytes = (size_t)(end + 4 - c->in);
}

/* Look at what has arrived: nothing, a part of a request, or one or more whole ones. */
static void next_request(struct connection *c)
{
    char *end;
    if (c->dead || c->stage != READING)
        return;
    if (c->head_bytes == 0) {
        end = memmem(c->in, c->in_length, "\r\n\r\n", 4);
        if (end == NULL)
            return;
        read_head(c, end);
    }
    if (c->in_length >= c->head_bytes + c->body_bytes) {
        answer(c);
    } else if (c->in_length >= KEPT_IN_BYTES) {
        c->uncounted = c->head_bytes + c->body_bytes - c->in_length;
        c->stage = COUNTING;
    }
}

static void receive(struct connection *c)
{
    static char passed_over[256 * 1024];
    ssize_t got;
    if (c->stage == COUNTING) {
        size_t wanted = c->uncounted < sizeof passed_over ? (size_t)c->uncounted : sizeof passed_over;
        got = recv(c->socket.fd, passed_over, wanted, 0);
    } else {
        if (c->in_size - c->in_length < FIRST_IN_BYTES / 2 && c->in_size < 2 * KEPT_IN_BYTES)
            c->in = must(realloc(c->in, (c->in_size *= 2) + 1));
        if (c->in_length == c->in_size) {
            hang_up(c); /* talks on and on while it is answered */
            return;
        }
        got = recv(c->socket.fd, c->in + c->in_length, c->in_size - c->in_length, 0);
    }
    if (got <= 0) {
        if (got == 0 || errno != EAGAIN)
            lost(c);
        return;
    }
    if (c->stage != COUNTING) {
        c->in_length += (size_t)got;
        next_request(c);
    } else if ((c->uncounted -= (unsigned long long)got) == 0) {
        answer(c);
    }
}

/* ---- the program ---- */

static int listener_at(void)
{
    size_t length = strlen(stub.host);
    int one = 1, fd;
    if (length > 5 && strcmp(stub.host + length - 5, ".sock") == 0) {
        struct sockaddr_un path = {.sun_family = AF_UNIX};
        snprintf(path.sun_path, sizeof path.sun_path, "%s", stub.host);
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (bind(fd, (struct sockaddr *)&path, sizeof path) == 0 && listen(fd, BACKLOG) == 0)
            return fd;
    } else {
        struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((uint16_t)stub.port),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        if (bind(fd, (struct sockaddr *)&place, sizeof place) == 0 && listen(fd, BACKLOG) == 0)
            return fd;
    }
    perror("engine_stub: cannot listen");
    exit(1);
}

static void make_vector(void)
{
    const char *width = getenv("ENGINE_STUB_WIDTH");
    if (width != NULL && atol(width) > 0)
        stub.width = atol(width);
    stub.vector = must(malloc((size_t)stub.width * 16));
    for (long index = 0; index < stub.width; index++)
        stub.vector_bytes += (size_t)sprintf(stub.vector + stub.vector_bytes, "%s0.0%08ld", index ? "," : "",
                                             (index * 7919 + 12345678) % 100000000);
}

static void read_options(int count, char **words)
{
    const struct { const char *name; const char **text; long *number; } known[] = {
        {"--alias", &stub.alias, NULL}, {"--tags", &stub.tags, NULL}, {"--host", &stub.host, NULL},
        {"--port", NULL, &stub.port}, {"--parallel", NULL, &stub.parallel}, {"--ctx-size", NULL, &stub.ctx_size},
    };
    for (int word = 1; word + 1 < count; word++)
        for (size_t option = 0; option < sizeof known / sizeof *known; option++)
            if (strcmp(words[word], known[option].name) == 0) {
                if (known[option].text != NULL)
                    *known[option].text = words[word + 1];
                else
                    *known[option].number = atol(words[word + 1]);
            }
    if (stub.parallel < 1)
        stub.parallel = 1;
}

static int told_of_itself(int count, char **words)
{
    for (int word = 1; word < count; word++) {
        if (strcmp(words[word], "--version") == 0)
            return fprintf(stderr, "version: stub (build 1, commit 0000000)\n") > 0;
        if (strcmp(words[word], "--help") == 0)
            return fputs(HELP, stdout) >= 0;
        if (strcmp(words[word], "--list-devices") == 0)
            return puts("Available devices:\n  (none)") >= 0;
    }
    return 0;
}

static void serve(int listener)
{
    struct watched door = {LISTENER, listener, NULL};
    struct epoll_event events[EVENTS_AT_ONCE], event = {.events = EPOLLIN, .data.ptr = &door};
    epoll_ctl(stub.epoll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int found = epoll_wait(stub.epoll, events, EVENTS_AT_ONCE, -1);
        for (int number = 0; number < found; number++) {
            struct watched *what = events[number].data.ptr;
            if (what->kind == LISTENER) {
                accept_all(listener);
            } else if (what->kind == TIMER) {
                ticked(what->owner);
            } else {
                if (!what->owner->dead && events[number].events & EPOLLOUT)
                    go_on(what->owner);
                if (!what->owner->dead && events[number].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                    receive(what->owner);
            }
        }
        bury();
    }
}

int main(int count, char **words)
{
    const char *events = getenv("ENGINE_STUB_EVENTS");
    if (told_of_itself(count, words))
        return 0;
    signal(SIGPIPE, SIG_IGN);
    read_options(count, words);
    make_vector();
    if (events != NULL && *events != '\0')
        stub.events_fd = open(events, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    stub.epoll = epoll_create1(EPOLL_CLOEXEC);
    serve(listener_at());
}
