/* Load over HTTP: so many clients, each a thread with a connection of its own that it keeps, each asking again and again.
 *
 * load --port N --body FILE [--path P] [--clients N] [--seconds S] [--warm S] [--spread-ms M] [--key WORD]
 *      [--header 'Name: value'] [--cancel-after EVENTS] [--pause-ms M] [--once N]
 *
 * Prints one JSON object: counts, and percentiles in microseconds. `latency` is of whole answers, `first_byte` from the
 * request to its first byte of body, `delay` from the moment that an event of a stream carries (see engine_stub.c) to the
 * moment it was here, `gap` between events of a stream. What begins within the first `--warm` seconds is not counted.
 * With --cancel-after a client hangs up behind so many events; `closed_ns` says when, in nanoseconds of CLOCK_MONOTONIC.
 * --once: so many requests by each client, however long they take, rather than some seconds of them.
 *
 * `requests_per_s` is of the time that counts: an answer that lies partly in it counts by that part, so that nobody's rate
 * depends on how long his answers take. Whoever answers so slowly that a client's only answer began before the time that
 * counts is asked once more by it: there is a latency then.
 *
 * `events` are those that carry a moment, `texts` all events of streams by the blank lines behind them. `answers` and
 * `all_texts` are from the first moment to the last: what the server did for the processor time that it took.
 *
 * Every failure is counted by its kind, none is repeated in silence: a kept connection that the server had closed
 * before a byte came is `stale`. A stream that the end of the time cuts off is `cut`, and its events count.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_CLIENTS = 1024,
    READ_BYTES = 256 * 1024,
    MOST_HEAD_BYTES = 64 * 1024,
    STAMP_DIGITS = 20,
    TIMEOUT_SECONDS = 30,
    THREAD_STACK_BYTES = 256 * 1024,
};

enum failure { NONE, CONNECT, SEND, RECEIVE, TIMED_OUT, MALFORMED, STATUS, FAILURES };
static const char *const failure_names[FAILURES] = {"", "connect", "send", "receive", "timed_out", "malformed", "status"};

struct values {
    uint64_t *ns;
    size_t length, size;
};

/* What one client saw; added up at the end. */
struct seen {
    struct values latency, first_byte, delay, gap, closed;
    uint64_t requests, answers, events, texts, all_texts, stale, cut, bytes_up, bytes_down, failures[FAILURES], last_ns;
    double parts; /* of answers, that lie in the time that counts */
    int status; /* of the last answer that was not 200 */
};

/* One answer being read. `left` counts what is to come of a sized body or of a chunk. */
enum part { HEAD, SIZED, CHUNK_LINE, CHUNK, CHUNK_END, TRAILER, UNTIL_CLOSED, WHOLE };

struct answer {
    enum part part;
    int status, close_after, is_stream, begun, behind_line;
    uint64_t left, asked_ns, event_ns, events;
    size_t length, tail_length; /* of head or chunk line so far; of the text behind the last whole stamp */
    char text[MOST_HEAD_BYTES + 1], tail[2 * STAMP_DIGITS];
};

struct client {
    int number, fd, used; /* used: the connection has carried an answer */
    struct seen seen;
    struct answer answer;
    char *buffer;
};

static struct {
    const char *path, *body_file, *key, *header;
    long port, clients, cancel_after, pause_ms, spread_ms, once;
    double seconds, warm;
    char *request;
    size_t request_bytes, body_bytes;
    uint64_t begin_ns, count_ns, end_ns;
} load = {.path = "/v1/chat/completions", .clients = 1, .seconds = 2};

static uint64_t now_ns(void)
{
    struct timespec moment;
    clock_gettime(CLOCK_MONOTONIC, &moment);
    return (uint64_t)moment.tv_sec * 1000000000u + (uint64_t)moment.tv_nsec;
}

static void fail(const char *sentence, const char *what)
{
    fprintf(stderr, "load: %s%s\n", sentence, what);
    exit(2);
}

static void *must(void *memory)
{
    if (memory == NULL)
        fail("out of memory", "");
    return memory;
}

static void keep(struct values *values, uint64_t ns)
{
    if (values->length == values->size) {
        values->size = values->size ? 2 * values->size : 1024;
        values->ns = must(realloc(values->ns, values->size * sizeof *values->ns));
    }
    values->ns[values->length++] = ns;
}

static int counts(const struct client *c)
{
    return c->answer.asked_ns >= load.count_ns;
}

/* ---- reading an answer ---- */

/* An event of a stream ends with an empty line, of which the two line ends may lie in two pieces. */
static void count_texts(struct client *c, const char *text, size_t length, uint64_t now)
{
    struct answer *a = &c->answer;
    const char *end = text + length, *at = text;
    uint64_t found = 0;
    while ((at = memchr(at, '\n', (size_t)(end - at))) != NULL) {
        int empty = at > text ? at[-1] == '\n' : a->behind_line;
        found += (uint64_t)empty;
        at++;
    }
    a->behind_line = end[-1] == '\n';
    c->seen.all_texts += found;
    if (now >= load.count_ns && now <= load.end_ns)
        c->seen.texts += found;
}

/* Look for stamps; `now` is when the bytes came. A stamp may lie across two pieces, which are looked at as one then. */
static void look_for_stamps(struct client *c, const char *text, size_t length, uint64_t now)
{
    struct answer *a = &c->answer;
    const char *end = text + length, *at = text;
    while ((at = memchr(at, 'T', (size_t)(end - at))) != NULL && end - at > STAMP_DIGITS) {
        uint64_t stamp = 0;
        int digit = 1;
        while (digit <= STAMP_DIGITS && at[digit] >= '0' && at[digit] <= '9')
            stamp = stamp * 10 + (uint64_t)(at[digit++] - '0');
        if (digit <= STAMP_DIGITS) {
            at++;
            continue;
        }
        at += digit;
        a->events++;
        if (now >= load.count_ns && now <= load.end_ns) {
            c->seen.events++;
            keep(&c->seen.delay, now > stamp ? now - stamp : 0);
            if (a->event_ns != 0)
                keep(&c->seen.gap, now - a->event_ns);
        }
        a->event_ns = now;
    }
    /* Behind the last T, if it is near the end, there may be the beginning of a stamp. */
    a->tail_length = at != NULL ? (size_t)(end - at) : 0;
    if (a->tail_length > 0)
        memmove(a->tail, at, a->tail_length);
}

static void payload(struct client *c, const char *text, size_t length, uint64_t now)
{
    struct answer *a = &c->answer;
    char joined[4 * STAMP_DIGITS];
    size_t joint = length < STAMP_DIGITS ? length : STAMP_DIGITS;
    if (!a->begun && counts(c))
        keep(&c->seen.first_byte, now - a->asked_ns);
    a->begun = 1;
    c->seen.bytes_down += length;
    if (!a->is_stream)
        return;
    count_texts(c, text, length, now);
    if (a->tail_length > 0) {
        size_t before = a->tail_length;
        memcpy(joined, a->tail, before);
        memcpy(joined + before, text, joint);
        look_for_stamps(c, joined, before + joint, now);
        if (a->tail_length > joint) /* not complete yet: all of the piece is part of it */
            return;
        text += joint - a->tail_length;
        length -= joint - a->tail_length;
    }
    look_for_stamps(c, text, length, now);
}

static const char *header(const char *head, const char *name)
{
    const char *found = strcasestr(head, name);
    return found == NULL ? NULL : found + strlen(name) + strspn(found + strlen(name), " ");
}

static enum failure read_head(struct answer *a)
{
    const char *length, *coding, *connection, *type;
    if (strncmp(a->text, "HTTP/1.", 7) != 0)
        return MALFORMED;
    a->status = atoi(a->text + 9);
    length = header(a->text, "\r\ncontent-length:");
    coding = header(a->text, "\r\ntransfer-encoding:");
    connection = header(a->text, "\r\nconnection:");
    type = header(a->text, "\r\ncontent-type:");
    a->close_after = connection != NULL && strncasecmp(connection, "close", 5) == 0;
    a->is_stream = type != NULL && strncasecmp(type, "text/event-stream", 17) == 0;
    a->left = length != NULL ? strtoull(length, NULL, 10) : 0;
    if (coding != NULL && strncasecmp(coding, "chunked", 7) == 0)
        a->part = CHUNK_LINE;
    else if (length == NULL)
        a->part = UNTIL_CLOSED;
    else
        a->part = a->left > 0 ? SIZED : WHOLE;
    a->length = 0;
    return NONE;
}

/* One more byte of a head, a chunk's line or a trailer. */
static enum failure line_byte(struct answer *a, char byte)
{
    char *end;
    if (a->length == MOST_HEAD_BYTES)
        return MALFORMED;
    a->text[a->length++] = byte;
    if (byte != '\n')
        return NONE;
    a->text[a->length] = '\0';
    if (a->part == HEAD)
        return a->length >= 4 && memcmp(a->text + a->length - 4, "\r\n\r\n", 4) == 0 ? read_head(a) : NONE;
    if (a->part == CHUNK_END) {
        a->part = CHUNK_LINE;
    } else if (a->part == TRAILER) {
        a->part = a->length == 2 ? WHOLE : TRAILER;
    } else {
        a->left = strtoull(a->text, &end, 16);
        if (end == a->text)
            return MALFORMED;
        a->part = a->left > 0 ? CHUNK : TRAILER;
    }
    a->length = 0;
    return NONE;
}

static enum failure arrived(struct client *c, const char *bytes, size_t length, uint64_t now)
{
    struct answer *a = &c->answer;
    while (length > 0 && a->part != WHOLE) {
        if (a->part == SIZED || a->part == CHUNK || a->part == UNTIL_CLOSED) {
            size_t piece = a->part != UNTIL_CLOSED && a->left < length ? (size_t)a->left : length;
            payload(c, bytes, piece, now);
            bytes += piece;
            length -= piece;
            if (a->part != UNTIL_CLOSED && (a->left -= piece) == 0)
                a->part = a->part == CHUNK ? CHUNK_END : WHOLE;
        } else {
            enum failure failure = line_byte(a, *bytes++);
            length--;
            if (failure != NONE)
                return failure;
        }
    }
    return length > 0 ? MALFORMED : NONE;
}

/* ---- asking ---- */

static void hang_up(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

static int connected(struct client *c)
{
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons((uint16_t)load.port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct timeval limit = {TIMEOUT_SECONDS, 0};
    int one = 1;
    if (c->fd >= 0)
        return 1;
    c->used = 0;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(c->fd, (struct sockaddr *)&place, sizeof place) == 0)
        return 1;
    hang_up(c);
    return 0;
}

static int sent(struct client *c)
{
    size_t gone = 0;
    while (gone < load.request_bytes) {
        ssize_t some = send(c->fd, load.request + gone, load.request_bytes - gone, MSG_NOSIGNAL);
        if (some <= 0)
            return 0;
        gone += (size_t)some;
    }
    return 1;
}

static int is_to_be_cut(const struct client *c, uint64_t now)
{
    return load.once == 0 && c->answer.is_stream && now >= load.end_ns;
}

/* The client leaves in the middle: the end of the connection is what is timed. */
static void leave(struct client *c)
{
    uint64_t now = now_ns();
    hang_up(c);
    if (counts(c))
        keep(&c->seen.closed, now);
}

/* Read until the answer is whole, or there is a reason to stop. Gives the failure; *gone where the client has left. */
static enum failure listen_to(struct client *c, int *gone)
{
    struct answer *a = &c->answer;
    while (a->part != WHOLE) {
        ssize_t got = recv(c->fd, c->buffer, READ_BYTES, 0);
        uint64_t now = now_ns();
        enum failure failure;
        if (got == 0 && a->part == UNTIL_CLOSED) {
            a->close_after = 1;
            return NONE;
        }
        if (got <= 0)
            return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? TIMED_OUT : RECEIVE;
        failure = arrived(c, c->buffer, (size_t)got, now);
        if (failure != NONE)
            return failure;
        if (load.cancel_after > 0 && a->events >= (uint64_t)load.cancel_after && a->part != WHOLE) {
            *gone = 1;
            leave(c);
            return NONE;
        }
        if (is_to_be_cut(c, now) && a->part != WHOLE) {
            *gone = 1;
            c->seen.cut++;
            hang_up(c);
            return NONE;
        }
    }
    return NONE;
}

/* How much of the time from one moment to another counts: 0 to 1. */
static double part_that_counts(uint64_t from_ns, uint64_t to_ns)
{
    uint64_t from = from_ns > load.count_ns ? from_ns : load.count_ns, to = to_ns < load.end_ns ? to_ns : load.end_ns;
    return to > from ? (double)(to - from) / (double)(to_ns - from_ns) : 0.0;
}

static void finished(struct client *c, enum failure failure)
{
    struct answer *a = &c->answer;
    uint64_t now = now_ns();
    if (failure == NONE && a->status != 200) {
        failure = STATUS;
        c->seen.status = a->status;
    }
    if (failure == RECEIVE && a->part == HEAD && a->length == 0 && c->used) {
        c->seen.stale++;
    } else if (failure != NONE) {
        c->seen.failures[failure]++;
    } else {
        c->seen.answers++;
        c->seen.parts += part_that_counts(a->asked_ns, now);
    }
    if (failure == NONE && counts(c)) {
        c->seen.requests++;
        c->seen.bytes_up += load.body_bytes;
        c->seen.last_ns = now;
        keep(&c->seen.latency, now - a->asked_ns);
    }
    c->used = 1;
    if (a->close_after || (failure != NONE && failure != STATUS))
        hang_up(c);
}

static void ask(struct client *c)
{
    struct answer *a = &c->answer;
    int gone = 0;
    enum failure failure;
    a->part = HEAD;
    a->begun = a->status = a->close_after = a->is_stream = 0;
    a->length = a->tail_length = 0;
    a->event_ns = a->events = 0;
    a->behind_line = 0;
    a->asked_ns = now_ns();
    if (!connected(c)) {
        c->seen.failures[CONNECT]++;
        usleep(1000);
        return;
    }
    if (!sent(c) && !c->used) { /* behind a kept connection that was closed, the answer or its lack is read below */
        c->seen.failures[SEND]++;
        hang_up(c);
        return;
    }
    failure = listen_to(c, &gone);
    if (!gone)
        finished(c, failure);
    else if (load.cancel_after > 0 && counts(c))
        c->seen.requests++;
}

/* Until the end, and until an answer of it counts that is not a stream; streams have events that count. */
static int goes_on(const struct client *c, long asked)
{
    if (load.once > 0)
        return asked < load.once;
    return now_ns() < load.end_ns || (asked > 0 && !c->answer.is_stream && !counts(c));
}

static void *run(void *given)
{
    struct client *c = given;
    c->fd = -1;
    c->buffer = must(malloc(READ_BYTES));
    if (load.spread_ms > 0)
        usleep((useconds_t)(load.spread_ms * 1000 * c->number / load.clients));
    for (long asked = 0; goes_on(c, asked); asked++) {
        ask(c);
        if (load.pause_ms > 0)
            usleep((useconds_t)(load.pause_ms * 1000));
    }
    hang_up(c);
    free(c->buffer);
    return NULL;
}

/* ---- what is printed ---- */

static int in_order(const void *left, const void *right)
{
    uint64_t one = *(const uint64_t *)left, other = *(const uint64_t *)right;
    return one < other ? -1 : one > other;
}

static double at(const struct values *values, double part)
{
    double rank = part * (double)values->length; /* nearest rank: the first that is not before it */
    size_t place = (size_t)rank;
    if (place > 0 && (double)place == rank)
        place--;
    return (double)values->ns[place < values->length ? place : values->length - 1] / 1000.0;
}

/* Percentiles are values that were measured; null where none was. */
static void print_values(const char *name, struct values *values)
{
    if (values->length == 0) {
        printf(", \"%s\": null", name);
        return;
    }
    qsort(values->ns, values->length, sizeof *values->ns, in_order);
    printf(", \"%s\": {\"count\": %zu, \"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, \"most_us\": %.1f}", name,
           values->length, at(values, 0.5), at(values, 0.9), at(values, 0.99), at(values, 1.0));
}

static void add(struct values *all, const struct values *some)
{
    for (size_t number = 0; number < some->length; number++)
        keep(all, some->ns[number]);
}

static void add_up(struct seen *all, const struct seen *one)
{
    add(&all->latency, &one->latency);
    add(&all->first_byte, &one->first_byte);
    add(&all->delay, &one->delay);
    add(&all->gap, &one->gap);
    add(&all->closed, &one->closed);
    all->requests += one->requests;
    all->answers += one->answers;
    all->parts += one->parts;
    all->all_texts += one->all_texts;
    all->events += one->events;
    all->texts += one->texts;
    all->stale += one->stale;
    all->cut += one->cut;
    all->bytes_up += one->bytes_up;
    all->bytes_down += one->bytes_down;
    all->last_ns = one->last_ns > all->last_ns ? one->last_ns : all->last_ns;
    all->status = one->status ? one->status : all->status;
    for (int kind = CONNECT; kind < FAILURES; kind++)
        all->failures[kind] += one->failures[kind];
}

static void print_seen(struct seen *all)
{
    uint64_t end = load.once > 0 ? all->last_ns : load.end_ns, errors = 0;
    double seconds = end > load.count_ns ? (double)(end - load.count_ns) / 1e9 : 0.0;
    double answered = load.once > 0 ? (double)all->requests : all->parts;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    for (int kind = CONNECT; kind < FAILURES; kind++)
        errors += all->failures[kind];
    printf("{\"answers\": %lu, \"all_texts\": %lu, ", all->answers, all->all_texts);
    printf("\"requests\": %lu, \"errors\": %lu, \"stale\": %lu, \"cut\": %lu, \"events\": %lu, \"texts\": %lu, \"seconds\": %.6f",
           all->requests, errors, all->stale, all->cut, all->events, all->texts, seconds);
    printf(", \"requests_per_s\": %.3f, \"events_per_s\": %.3f", seconds > 0 ? answered / seconds : 0.0,
           seconds > 0 ? (double)all->events / seconds : 0.0);
    printf(", \"bytes_up\": %lu, \"bytes_down\": %lu, \"cpu_s\": %.3f", all->bytes_up, all->bytes_down,
           (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
               (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    print_values("latency", &all->latency);
    print_values("first_byte", &all->first_byte);
    print_values("delay", &all->delay);
    print_values("gap", &all->gap);
    printf(", \"failures\": {");
    for (int kind = CONNECT, printed = 0; kind < FAILURES; kind++)
        if (all->failures[kind] > 0)
            printf("%s\"%s\": %lu", printed++ ? ", " : "", failure_names[kind], all->failures[kind]);
    printf("}, \"status\": %d, \"closed_ns\": [", all->status);
    for (size_t number = 0; number < all->closed.length; number++)
        printf("%s%lu", number ? ", " : "", all->closed.ns[number]);
    puts("]}");
}

/* ---- the program ---- */

static void make_request(void)
{
    FILE *file = fopen(load.body_file, "rb");
    char *head;
    int head_bytes;
    if (file == NULL)
        fail("cannot read the body: ", load.body_file);
    fseek(file, 0, SEEK_END);
    load.body_bytes = (size_t)ftell(file);
    rewind(file);
    head_bytes = asprintf(&head,
                          "POST %s HTTP/1.1\r\nHost: 127.0.0.1:%ld\r\nUser-Agent: load\r\nAccept: */*\r\n"
                          "Authorization: Bearer %s\r\nContent-Type: application/json\r\n%s%sContent-Length: %zu\r\n\r\n",
                          load.path, load.port, load.key != NULL ? load.key : "unused",
                          load.header != NULL ? load.header : "", load.header != NULL ? "\r\n" : "", load.body_bytes);
    load.request_bytes = (size_t)head_bytes + load.body_bytes;
    load.request = must(malloc(load.request_bytes + 1));
    memcpy(load.request, head, (size_t)head_bytes);
    if (fread(load.request + head_bytes, 1, load.body_bytes, file) != load.body_bytes)
        fail("cannot read the body: ", load.body_file);
    fclose(file);
    free(head);
}

static void read_options(int count, char **words)
{
    const struct { const char *name; const char **text; long *whole; double *real; } known[] = {
        {"--port", NULL, &load.port, NULL}, {"--path", &load.path, NULL, NULL},
        {"--body", &load.body_file, NULL, NULL}, {"--clients", NULL, &load.clients, NULL},
        {"--seconds", NULL, NULL, &load.seconds}, {"--warm", NULL, NULL, &load.warm},
        {"--spread-ms", NULL, &load.spread_ms, NULL}, {"--key", &load.key, NULL, NULL},
        {"--header", &load.header, NULL, NULL}, {"--cancel-after", NULL, &load.cancel_after, NULL},
        {"--pause-ms", NULL, &load.pause_ms, NULL}, {"--once", NULL, &load.once, NULL},
    };
    for (int word = 1; word < count; word += 2) {
        size_t option = 0;
        while (option < sizeof known / sizeof *known && strcmp(words[word], known[option].name) != 0)
            option++;
        if (option == sizeof known / sizeof *known || word + 1 == count)
            fail("what is this? ", words[word]);
        if (known[option].text != NULL)
            *known[option].text = words[word + 1];
        else if (known[option].whole != NULL)
            *known[option].whole = atol(words[word + 1]);
        else
            *known[option].real = atof(words[word + 1]);
    }
    if (load.port < 1 || load.body_file == NULL || load.clients < 1 || load.clients > MOST_CLIENTS)
        fail("needs --port, --body, and 1 to 1024 --clients", "");
}

int main(int count, char **words)
{
    static pthread_t threads[MOST_CLIENTS];
    struct client *clients;
    struct seen all = {0};
    pthread_attr_t small;
    read_options(count, words);
    make_request();
    clients = must(calloc((size_t)load.clients, sizeof *clients));
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, THREAD_STACK_BYTES);
    load.begin_ns = now_ns();
    load.count_ns = load.begin_ns + (uint64_t)(load.warm * 1e9);
    load.end_ns = load.count_ns + (uint64_t)(load.seconds * 1e9);
    if (load.once > 0)
        load.end_ns = UINT64_MAX;
    for (long number = 0; number < load.clients; number++) {
        clients[number].number = (int)number;
        if (pthread_create(&threads[number], &small, run, &clients[number]) != 0)
            fail("cannot start a thread", "");
    }
    for (long number = 0; number < load.clients; number++) {
        pthread_join(threads[number], NULL);
        add_up(&all, &clients[number].seen);
    }
    print_seen(&all);
    return 0;
}
