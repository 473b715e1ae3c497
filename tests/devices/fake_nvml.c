/* A stand-in for libnvidia-ml.so.1, so that the real Python binding runs without a card.
 *
 * What the "driver" says is a text file named in the environment variable NVML_STORY. It is read again on every call,
 * so a test changes the world by writing the file. One statement a line:
 *
 *   driver CODE                                        opening the driver gives this code
 *   card UUID PCI TOTAL RESERVED USED NAME...          cards count from 0 in the order of their lines
 *   capability CARD MAJOR MINOR                        what it can compute; without it that question is not supported
 *   holds CARD compute|graphics PID BYTES|unknown      one row of a process list
 *   claims CARD PID BYTES listed|unknown|unlisted      used there while that process is, and a row of the compute list,
 *                                                      without a figure, or none
 *   fails CARD memory|compute|graphics|name CODE       that question about that card gives this code
 *   fails CARD QUESTION CODE FROM TO                   the same, from so manieth to so manieth time since it was opened
 *   hangs CARD memory|compute|graphics|name            that question is not answered for as long as this line is there
 *   mig CARD MODE                                      0 or 1; without it that question is not supported
 *
 * Structures and names are those of NVML's public header as the binding declares them.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7,
       NOT_LOADED = 9, VERSION_MISMATCH = 25 };

struct card { char uuid[80], pci[32], name[96]; uint64_t total, reserved, used; };
struct memory { uint32_t version; uint64_t total, reserved, free, used; };
struct process { uint32_t pid; uint64_t used; uint32_t gpu_instance, compute_instance; };
struct pci { char legacy[16]; uint32_t domain, bus, device, device_id, subsystem_id; char bus_id[32]; };

static int opened = 0;

/* Calls `visit` with each line of the story until it answers other than 0, and gives that answer. */
static int each_line(int (*visit)(const char *line, void *with), void *with) {
    const char *path = getenv("NVML_STORY");
    FILE *story = path ? fopen(path, "r") : NULL;
    char line[512];
    int answer = 0;
    while (story && !answer && fgets(line, sizeof line, story)) answer = visit(line, with);
    if (story) fclose(story);
    return answer;
}

static int visit_driver(const char *line, void *with) { return sscanf(line, "driver %d", (int *)with) == 1; }

struct card_search { int wanted; const char *uuid; int index; struct card card; };

static int visit_card(const char *line, void *with) {
    struct card_search *search = with;
    struct card *card = &search->card;
    if (sscanf(line, "card %79s %31s %" SCNu64 " %" SCNu64 " %" SCNu64 " %95[^\n]", card->uuid, card->pci, &card->total,
               &card->reserved, &card->used, card->name) != 6)
        return 0;
    int index = search->index++;
    return search->uuid ? !strcmp(search->uuid, card->uuid) : index == search->wanted;
}

struct failure_search { int card; const char *call; int code, times; };

static int visit_failure(const char *line, void *with) {
    struct failure_search *search = with;
    int card, code, from, to;
    char call[16];
    int words = sscanf(line, "fails %d %15s %d %d %d", &card, call, &code, &from, &to);
    if (words < 3 || card != search->card || strcmp(call, search->call)) return 0;
    if (words == 5 && (search->times < from || search->times > to)) return 0;
    search->code = code;
    return 1;
}

static int visit_hang(const char *line, void *with) {
    const struct failure_search *search = with;
    int card;
    char call[16];
    return sscanf(line, "hangs %d %15s", &card, call) == 2 && card == search->card && !strcmp(call, search->call);
}

struct mode_search { int card; unsigned mode; };

static int visit_mode(const char *line, void *with) {
    struct mode_search *search = with;
    int card;
    return sscanf(line, "mig %d %u", &card, &search->mode) == 2 && card == search->card;
}

/* How many times a question was put since the driver was opened. Cards beyond the eighth share a count. */
static int asked[8][4];

static int count_question(int card, const char *call) {
    static const char *const calls[] = {"memory", "compute", "graphics", "name"};
    for (int index = 0; index < 4; index++)
        if (!strcmp(calls[index], call)) return ++asked[card & 7][index];
    return 0;
}

struct capability_search { int card, major, minor; };

static int visit_capability(const char *line, void *with) {
    struct capability_search *search = with;
    int card;
    return sscanf(line, "capability %d %d %d", &card, &search->major, &search->minor) == 3 && card == search->card;
}

/* A stand-in engine says itself what it holds; whatever its end, it then holds nothing. */
static int read_claim(const char *line, int *card, uint32_t *pid, uint64_t *bytes, char how[16]) {
    return sscanf(line, "claims %d %" SCNu32 " %" SCNu64 " %15s", card, pid, bytes, how) == 4 && !kill((pid_t)*pid, 0);
}

struct claim_sum { int card; uint64_t bytes; };

static int visit_claim(const char *line, void *with) {
    struct claim_sum *sum = with;
    int card;
    uint32_t pid;
    uint64_t bytes;
    char how[16];
    if (read_claim(line, &card, &pid, &bytes, how) && card == sum->card) sum->bytes += bytes;
    return 0;
}

struct process_search { int card; const char *list; uint32_t count, room; struct process *rows; };

static int visit_process(const char *line, void *with) {
    struct process_search *search = with;
    int card;
    uint32_t pid;
    char list[16], bytes[32], how[16];
    uint64_t held = 0;
    if (sscanf(line, "holds %d %15s %" SCNu32 " %31s", &card, list, &pid, bytes) == 4)
        held = strcmp(bytes, "unknown") ? strtoull(bytes, NULL, 10) : UINT64_MAX;
    else if (read_claim(line, &card, &pid, &held, how) && strcmp(how, "unlisted")) {
        strcpy(list, "compute");
        if (!strcmp(how, "unknown")) held = UINT64_MAX;
    } else
        return 0;
    if (card != search->card || strcmp(list, search->list)) return 0;
    if (search->count < search->room) {
        struct process row = {pid, held, ~0u, ~0u};
        search->rows[search->count] = row;
    }
    search->count++;
    return 0;
}

/* Handles are card numbers plus one. */
static int look_up(void *handle, const char *call, struct card *card) {
    if (!opened) return UNINITIALIZED;
    struct card_search search = {.wanted = (int)(intptr_t)handle - 1};
    if (!each_line(visit_card, &search)) return INVALID_ARGUMENT;
    struct failure_search failure = {.card = search.wanted, .call = call, .times = count_question(search.wanted, call)};
    each_line(visit_failure, &failure);
    while (each_line(visit_hang, &failure)) usleep(1000);
    struct claim_sum claims = {.card = search.wanted};
    each_line(visit_claim, &claims);
    *card = search.card;
    card->used += claims.bytes;
    return failure.code;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int code = getenv("NVML_STORY") ? SUCCESS : NOT_LOADED;
    each_line(visit_driver, &code);
    opened = code == SUCCESS;
    memset(asked, 0, sizeof asked);
    return code;
}

int nvmlShutdown(void) {
    if (!opened) return UNINITIALIZED;
    opened = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int code) { (void)code; return "the fake's error"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!opened) return UNINITIALIZED;
    struct card_search search = {.wanted = -1};
    each_line(visit_card, &search);
    *count = (unsigned)search.index;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    struct card card;
    *handle = (void *)(intptr_t)(index + 1);
    return look_up(*handle, "", &card);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    if (!opened) return UNINITIALIZED;
    struct card_search search = {.uuid = uuid};
    if (!each_line(visit_card, &search)) return NOT_FOUND;
    *handle = (void *)(intptr_t)search.index;
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    struct card card;
    int code = look_up(handle, "", &card);
    if (!code) snprintf(text, size, "%s", card.uuid);
    return code;
}

int nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    struct card card;
    int code = look_up(handle, "name", &card);
    if (!code) snprintf(text, size, "%s", card.name);
    return code;
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    struct card card;
    int code = look_up(handle, "", &card);
    struct capability_search search = {.card = (int)(intptr_t)handle - 1};
    if (code) return code;
    if (!each_line(visit_capability, &search)) return NOT_SUPPORTED;
    *major = search.major;
    *minor = search.minor;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    struct card card;
    int code = look_up(handle, "", &card);
    struct mode_search search = {.card = (int)(intptr_t)handle - 1};
    if (code) return code;
    if (!each_line(visit_mode, &search)) return NOT_SUPPORTED;
    *current = *pending = search.mode;
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci) {
    struct card card;
    int code = look_up(handle, "", &card);
    memset(pci, 0, sizeof *pci);
    if (!code) snprintf(pci->bus_id, sizeof pci->bus_id, "%s", card.pci);
    return code;
}

/* The first version counts the driver's share as used. It is here to show that nobody calls it. */
int nvmlDeviceGetMemoryInfo(void *handle, uint64_t *total_free_used) {
    struct card card;
    int code = look_up(handle, "memory", &card);
    if (code) return code;
    total_free_used[0] = card.total;
    total_free_used[2] = card.used + card.reserved;
    total_free_used[1] = card.total - total_free_used[2];
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory *memory) {
    struct card card;
    int code = look_up(handle, "memory", &card);
    if (code) return code;
    if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
    memory->total = card.total;
    memory->reserved = card.reserved;
    memory->used = card.used;
    memory->free = card.total - card.reserved - card.used;
    return SUCCESS;
}

static int list_processes(void *handle, const char *list, unsigned *count, struct process *rows) {
    struct card card;
    int code = look_up(handle, list, &card);
    if (code) return code;
    struct process_search search = {.card = (int)(intptr_t)handle - 1, .list = list, .room = rows ? *count : 0, .rows = rows};
    each_line(visit_process, &search);
    *count = search.count;
    return search.count > search.room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process *rows) {
    return list_processes(handle, "compute", count, rows);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, struct process *rows) {
    return list_processes(handle, "graphics", count, rows);
}
