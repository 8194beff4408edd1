/* libcurl tells which sockets to watch and when to call it (multi_socket_action); libuv watches
 * them. A call first gets a token, if there is a user, and then sends its request. Answers are
 * parsed strictly. An error names the endpoint and quotes the server. */
#include "launcher/hosts/etcd/etcd.h"

#include "base/file.h"
#include "base/library.h"
#include "base/scan.h"

#include <cjson/cJSON.h>
#include <dlfcn.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#if __has_include(<curl/curl.h>)
#include <curl/curl.h>

/* The functions of libcurl that are loaded by name. */
static struct {
    CURLcode (*global_init)(long flags);
    CURL *(*easy_init)(void);
    CURLcode (*easy_setopt)(CURL *easy, CURLoption option, ...);
    CURLcode (*easy_getinfo)(CURL *easy, CURLINFO info, ...);
    const char *(*easy_strerror)(CURLcode code);
    void (*easy_cleanup)(CURL *easy);
    struct curl_slist *(*slist_append)(struct curl_slist *list, const char *line);
    void (*slist_free_all)(struct curl_slist *list);
    CURLM *(*multi_init)(void);
    CURLMcode (*multi_setopt)(CURLM *multi, CURLMoption option, ...);
    CURLMcode (*multi_add_handle)(CURLM *multi, CURL *easy);
    CURLMcode (*multi_remove_handle)(CURLM *multi, CURL *easy);
    CURLMcode (*multi_assign)(CURLM *multi, curl_socket_t fd, void *pointer);
    CURLMcode (*multi_socket_action)(CURLM *multi, curl_socket_t fd, int events, int *running);
    CURLMsg *(*multi_info_read)(CURLM *multi, int *left);
    CURLMcode (*multi_cleanup)(CURLM *multi);
} curl;

static int load_curl(struct dt_error *err)
{
    static const char *const files[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
    static const struct dt_symbol symbols[] = {{"curl_global_init", &curl.global_init},
                                               {"curl_easy_init", &curl.easy_init},
                                               {"curl_easy_setopt", &curl.easy_setopt},
                                               {"curl_easy_getinfo", &curl.easy_getinfo},
                                               {"curl_easy_strerror", &curl.easy_strerror},
                                               {"curl_easy_cleanup", &curl.easy_cleanup},
                                               {"curl_slist_append", &curl.slist_append},
                                               {"curl_slist_free_all", &curl.slist_free_all},
                                               {"curl_multi_init", &curl.multi_init},
                                               {"curl_multi_setopt", &curl.multi_setopt},
                                               {"curl_multi_add_handle", &curl.multi_add_handle},
                                               {"curl_multi_remove_handle", &curl.multi_remove_handle},
                                               {"curl_multi_assign", &curl.multi_assign},
                                               {"curl_multi_socket_action", &curl.multi_socket_action},
                                               {"curl_multi_info_read", &curl.multi_info_read},
                                               {"curl_multi_cleanup", &curl.multi_cleanup}};
    if (curl.multi_cleanup != NULL) {
        return 0;
    }
    void *library = dt_library_open(files, sizeof files / sizeof files[0]);
    if (library == NULL) {
        return dt_fail(err, DT_INVALID, "etcd-v3 needs libcurl: %s; run: apt-get install libcurl4", dlerror());
    }
    const char *missing = dt_library_find(library, symbols, sizeof symbols / sizeof symbols[0]);
    if (missing != NULL) {
        return dt_fail(err, DT_INVALID, "etcd-v3: libcurl has no %s", missing);
    }
    return curl.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK
               ? 0
               : dt_fail(err, DT_INTERNAL, "etcd-v3: libcurl does not start");
}

struct watch { /* a socket that libcurl wants watched */
    uv_poll_t poll;
    struct etcd *etcd;
    curl_socket_t fd;
};

struct etcd {
    uv_loop_t *loop;
    struct etcd_options options;
    char *name, *password, *token;
    CURLM *multi;
    CURL *easy;
    struct curl_slist *headers;
    uv_timer_t timer;
    int endpoint;
    bool busy, asking_token, added, closing;
    bool renewed; /* the token was renewed during this call */
    int handles;  /* libuv handles not closed yet */
    struct dt_text body, sent, answer;
    const char *path;
    int key_count;
    etcd_done *done;
    void *user;
};

static const char *const auth_path = "/v3/auth/authenticate";

static void send_request(struct etcd *e);

static void free_when_closed(struct etcd *e)
{
    if (--e->handles > 0 || !e->closing) {
        return;
    }
    for (int i = 0; i < e->options.endpoint_count; i++) {
        free((char *)e->options.endpoints[i].host);
    }
    free((char *)e->options.cacert);
    free((char *)e->options.cert);
    free((char *)e->options.key);
    free((char *)e->options.user_file);
    free(e->name);
    free(e->password);
    free(e->token);
    dt_text_clear(&e->body);
    dt_text_clear(&e->sent);
    dt_text_clear(&e->answer);
    free(e);
}

/* ---- answers ---- */

/* A member in either of the gateway's spellings: response_range or responseRange. */
static const cJSON *member_of(const cJSON *object, const char *snake, const char *camel)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(object, snake);
    return found != NULL ? found : cJSON_GetObjectItemCaseSensitive(object, camel);
}

/* A 64-bit number, which the gateway sends as a string. The gateway leaves zeros out, so a missing
 * number is 0. A JSON number above 2^53, which a double may not hold exactly, is 0, too. */
static int64_t number_of(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    long long value = 0;
    if (cJSON_IsString(item)) {
        (void)dt_parse_int64(item->valuestring, &value);
    } else if (cJSON_IsNumber(item) && fabs(item->valuedouble) <= 0x1p53) {
        value = (long long)item->valuedouble;
    }
    return value;
}

static bool from_base64(const char *text, struct dt_text *out)
{
    size_t length = strlen(text), size = 0;
    char *bytes = dt_alloc(length + 1);
    bool good = sodium_base642bin((unsigned char *)bytes, length, text, length, NULL, &size, NULL,
                                  sodium_base64_VARIANT_ORIGINAL) == 0;
    if (good) {
        dt_text_add(out, bytes, size);
    }
    free(bytes);
    return good;
}

static bool read_value(const cJSON *response, struct etcd_value *value)
{
    const cJSON *range = member_of(response, "response_range", "responseRange");
    const cJSON *kv = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(range, "kvs"), 0);
    if (kv == NULL) {
        return range != NULL;
    }
    const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(kv, "value");
    value->found = true;
    value->revision = number_of(kv, "mod_revision");
    return value->revision > 0 &&
           (bytes == NULL || (cJSON_IsString(bytes) && from_base64(bytes->valuestring, &value->bytes)));
}

static bool read_result(const struct etcd *e, const cJSON *json, struct etcd_result *r)
{
    r->succeeded = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, "succeeded"));
    r->revision = number_of(cJSON_GetObjectItemCaseSensitive(json, "header"), "revision");
    r->lease = number_of(json, "ID");
    const cJSON *responses = cJSON_GetObjectItemCaseSensitive(json, "responses");
    if (e->key_count == 0) {
        return r->lease != 0;
    }
    if (r->revision <= 0 || !cJSON_IsArray(responses)) {
        return false;
    }
    for (int i = 0; i < e->key_count; i++) {
        const cJSON *response = cJSON_GetArrayItem(responses, i);
        if (member_of(response, "response_put", "responsePut") == NULL && !(r->succeeded && response == NULL) &&
            !read_value(response, &r->values[i])) {
            return false;
        }
    }
    return true;
}

/* gRPC's codes, as the gateway passes them on. */
enum {
    CODE_INVALID = 3,
    CODE_DENIED = 7,
    CODE_EXHAUSTED = 8,
    CODE_FAILED = 9,
    CODE_NOT_THERE = 12,
    CODE_UNAUTHENTICATED = 16
};

/* The server's error message, or null. */
static const char *words_of(const cJSON *json)
{
    const cJSON *said = cJSON_GetObjectItemCaseSensitive(json, "error");
    said = cJSON_IsString(said) ? said : cJSON_GetObjectItemCaseSensitive(json, "message");
    return cJSON_IsString(said) ? said->valuestring : NULL;
}

/* Whether the token is no longer valid. Tokens expire with time, and with each change of a user or
 * a role (etcd's ErrInvalidAuthToken and ErrAuthOldRevision). */
static bool is_token_old(const cJSON *json)
{
    const char *said = words_of(json);
    int64_t code = number_of(json, "code");
    return code == CODE_UNAUTHENTICATED ||
           (code == CODE_INVALID && said != NULL && strstr(said, "revision of auth store is old") != NULL);
}

static int fail_with_answer(const struct etcd *e, long http, const cJSON *json, struct dt_error *err)
{
    const char *said = words_of(json);
    int64_t code = number_of(json, "code");
    const struct etcd_options *o = &e->options;
    const char *host = o->endpoints[e->endpoint].host;
    int port = o->endpoints[e->endpoint].port;
    if (said == NULL) {
        int shown = (int)strcspn(dt_text_str(&e->answer), "\r\n");
        return dt_fail(err, http == 404 ? DT_INVALID : DT_IO, "etcd %s port %d: HTTP status %ld: %.*s%s", host, port,
                       http, shown < 200 ? shown : 200, dt_text_str(&e->answer),
                       http == 404 ? "; nothing serves etcd's version 3 at /v3: etcd 3.4 or newer is needed there"
                                   : "");
    }
    bool stays = code == CODE_INVALID || code == CODE_DENIED || code == CODE_FAILED || code == CODE_NOT_THERE ||
                 code == CODE_UNAUTHENTICATED;
    const char *hint = e->name == NULL && (code == CODE_INVALID || code == CODE_UNAUTHENTICATED)
                           ? "; name and password come from --rdzv_conf=user_file=FILE"
                       : code == CODE_EXHAUSTED ? "; compact and defragment it, then disarm its alarm"
                                                : "";
    return dt_fail(err, stays ? DT_INVALID : DT_IO, "etcd %s port %d: %.300s%s", host, port, said, hint);
}

static int fail_with_curl(const struct etcd *e, CURLcode code, struct dt_error *err)
{
    bool stays =
        code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CERTPROBLEM || code == CURLE_SSL_CACERT_BADFILE;
    return dt_fail(err,
                   stays                              ? DT_INVALID
                   : code == CURLE_OPERATION_TIMEDOUT ? DT_TIMEOUT
                                                      : DT_IO,
                   "etcd %s port %d: %.200s", e->options.endpoints[e->endpoint].host,
                   e->options.endpoints[e->endpoint].port, curl.easy_strerror(code));
}

/* ---- one request ---- */

static void finish(struct etcd *e, const struct etcd_result *result, const struct dt_error *err)
{
    e->busy = false;
    if (err != NULL) {
        e->endpoint = (e->endpoint + 1) % e->options.endpoint_count;
    }
    e->done(e->user, result, err);
}

static void take_token(struct etcd *e, const cJSON *json)
{
    struct dt_error err;
    const cJSON *token = cJSON_GetObjectItemCaseSensitive(json, "token");
    if (!cJSON_IsString(token) || !dt_text_is_harmless(token->valuestring, strlen(token->valuestring),
                                                       /* the token becomes a header line of our
                                                        * requests */
                                                       false)) {
        (void)dt_fail(&err, DT_IO, "etcd %s: no token in its answer", e->options.endpoints[e->endpoint].host);
        finish(e, NULL, &err);
        return;
    }
    e->token = dt_strdup(token->valuestring);
    e->asking_token = false;
    send_request(e);
}

static void on_answer(struct etcd *e, CURLcode code)
{
    struct dt_error err;
    struct etcd_result result = {0};
    long http = 0;
    (void)curl.easy_getinfo(e->easy, CURLINFO_RESPONSE_CODE, &http);
    (void)curl.multi_remove_handle(e->multi, e->easy);
    e->added = false;
    cJSON *json = code == CURLE_OK ? dt_scan_parse(dt_text_str(&e->answer), e->answer.size, "etcd", NULL, NULL) : NULL;
    if (code != CURLE_OK) {
        (void)fail_with_curl(e, code, &err);
        finish(e, NULL, &err);
    } else if (http != 200 && e->token != NULL && !e->renewed && is_token_old(json)) {
        e->renewed = true;
        free(e->token);
        e->token = NULL;
        send_request(e);
    } else if (http != 200) {
        (void)fail_with_answer(e, http, json, &err);
        finish(e, NULL, &err);
    } else if (e->asking_token) {
        take_token(e, json);
    } else if (json == NULL || !read_result(e, json, &result)) {
        (void)dt_fail(&err, DT_INVALID, "etcd %s port %d: its answer is none of etcd's: %.100s",
                      e->options.endpoints[e->endpoint].host, e->options.endpoints[e->endpoint].port,
                      dt_text_str(&e->answer));
        finish(e, NULL, &err);
    } else {
        finish(e, &result, NULL);
    }
    for (int i = 0; i < ETCD_KEYS; i++) {
        dt_text_clear(&result.values[i].bytes);
    }
    cJSON_Delete(json);
}

static size_t on_bytes(char *bytes, size_t size, size_t count, void *user)
{
    struct etcd *e = user;
    if (e->answer.size + size * count > ETCD_ANSWER_BYTES) {
        return 0; /* makes libcurl give up */
    }
    dt_text_add(&e->answer, bytes, size * count);
    return size * count;
}

static void look_for_end(struct etcd *e)
{
    CURLMsg *m;
    int left;
    while (!e->closing && (m = curl.multi_info_read(e->multi, &left)) != NULL) {
        if (m->msg == CURLMSG_DONE) {
            on_answer(e, m->data.result);
        }
    }
}

/* ---- the sockets and timer of libcurl, on the loop ---- */

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct watch *w = poll->data;
    struct etcd *e = w->etcd;
    int running, flags = status < 0 ? CURL_CSELECT_ERR : 0;
    flags |= (events & UV_READABLE) != 0 ? CURL_CSELECT_IN : 0;
    flags |= (events & UV_WRITABLE) != 0 ? CURL_CSELECT_OUT : 0;
    (void)curl.multi_socket_action(e->multi, w->fd, flags, &running);
    look_for_end(e);
}

static void on_timer(uv_timer_t *timer)
{
    struct etcd *e = timer->data;
    int running;
    (void)curl.multi_socket_action(e->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    look_for_end(e);
}

static void on_watch_closed(uv_handle_t *handle)
{
    struct watch *w = handle->data;
    struct etcd *e = w->etcd;
    free(w);
    free_when_closed(e);
}

static int want_socket(CURL *easy, curl_socket_t fd, int what, void *user, void *assigned)
{
    struct etcd *e = user;
    struct watch *w = assigned;
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (w != NULL) {
            (void)curl.multi_assign(e->multi, fd, NULL);
            uv_close((uv_handle_t *)&w->poll, on_watch_closed);
        }
        return 0;
    }
    if (w == NULL) {
        w = dt_alloc(sizeof *w);
        w->etcd = e;
        w->fd = fd;
        if (uv_poll_init(e->loop, &w->poll, fd) != 0) {
            free(w);
            return -1;
        }
        w->poll.data = w;
        e->handles++;
        (void)curl.multi_assign(e->multi, fd, w);
    }
    return uv_poll_start(&w->poll, (what & CURL_POLL_IN ? UV_READABLE : 0) | (what & CURL_POLL_OUT ? UV_WRITABLE : 0),
                         on_poll);
}

static int want_timer(CURLM *multi, long wait_ms, void *user)
{
    struct etcd *e = user;
    (void)multi;
    if (e->closing) {
        return 0;
    }
    if (wait_ms < 0) {
        return uv_timer_stop(&e->timer);
    }
    uv_update_time(e->loop);
    return uv_timer_start(&e->timer, on_timer, (uint64_t)wait_ms, 0);
}

static struct curl_slist *headers_of(const struct etcd *e)
{
    struct curl_slist *list = curl.slist_append(NULL, "Content-Type: application/json");
    list = curl.slist_append(list, "Expect:");
    if (e->token != NULL) {
        char *line = dt_format("Authorization: %s", e->token);
        list = curl.slist_append(list, line);
        free(line);
    }
    return list;
}

static void send_request(struct etcd *e)
{
    const struct etcd_options *o = &e->options;
    const char *host = o->endpoints[e->endpoint].host;
    bool bare = strchr(host, ':') != NULL;
    e->asking_token = e->name != NULL && e->token == NULL;
    char *url = dt_format("%s://%s%s%s:%d%s", o->tls ? "https" : "http", bare ? "[" : "", host, bare ? "]" : "",
                          o->endpoints[e->endpoint].port, e->asking_token ? auth_path : e->path);
    dt_text_reset(&e->answer);
    dt_text_reset(&e->sent);
    if (e->asking_token) {
        dt_text_puts(&e->sent, "{\"name\":");
        dt_text_json(&e->sent, e->name, strlen(e->name));
        dt_text_puts(&e->sent, ",\"password\":");
        dt_text_json(&e->sent, e->password, strlen(e->password));
        dt_text_puts(&e->sent, "}");
    } else {
        dt_text_puts(&e->sent, dt_text_str(&e->body));
    }
    curl.slist_free_all(e->headers);
    e->headers = headers_of(e);
    (void)curl.easy_setopt(e->easy, CURLOPT_URL, url);
    (void)curl.easy_setopt(e->easy, CURLOPT_HTTPHEADER, e->headers);
    (void)curl.easy_setopt(e->easy, CURLOPT_POSTFIELDSIZE, (long)e->sent.size);
    (void)curl.easy_setopt(e->easy, CURLOPT_POSTFIELDS, dt_text_str(&e->sent));
    free(url);
    e->added = true;
    (void)curl.multi_add_handle(e->multi, e->easy);
}

/* Sends a request, whose body is in e->body. */
static void begin(struct etcd *e, const char *path, int key_count, etcd_done *done, void *user)
{
    e->path = path;
    e->key_count = key_count;
    e->done = done;
    e->user = user;
    e->busy = true;
    e->renewed = false;
    send_request(e);
}

bool etcd_is_busy(const struct etcd *e)
{
    return e->busy;
}

/* ---- calls ---- */

static void add_base64(struct dt_text *out, const char *name, const void *bytes, size_t size)
{
    size_t capacity = sodium_base64_encoded_len(size, sodium_base64_VARIANT_ORIGINAL);
    char *text = dt_alloc(capacity);
    (void)sodium_bin2base64(text, capacity, bytes, size, sodium_base64_VARIANT_ORIGINAL);
    dt_text_printf(out, "\"%s\":\"%s\"", name, text);
    free(text);
}

static void add_key(struct dt_text *out, const struct etcd_key *k)
{
    add_base64(out, "key", k->key, strlen(k->key));
}

/* Adds an operation for every key, so that answers come in the order of the keys. */
static void add_operations(struct dt_text *out, const struct etcd_txn *txn, bool puts)
{
    const char *comma = "";
    for (int i = 0; i < txn->key_count; i++) {
        const struct etcd_key *k = &txn->keys[i];
        dt_text_printf(out, "%s{\"%s\":{", comma, puts && k->put != NULL ? "requestPut" : "requestRange");
        add_key(out, k);
        if (puts && k->put != NULL) {
            dt_text_puts(out, ",");
            add_base64(out, "value", k->put, k->put_bytes);
            if (txn->lease != 0) {
                dt_text_printf(out, ",\"lease\":\"%lld\"", (long long)txn->lease);
            }
        }
        dt_text_puts(out, "}}");
        comma = ",";
    }
}

void etcd_txn(struct etcd *e, const struct etcd_txn *txn, etcd_done *done, void *user)
{
    const char *comma = "";
    dt_text_reset(&e->body);
    dt_text_puts(&e->body, "{\"compare\":[");
    for (int i = 0; i < txn->key_count; i++) {
        const struct etcd_key *k = &txn->keys[i];
        if (k->compare) {
            dt_text_printf(&e->body, "%s{\"target\":\"MOD\",\"result\":\"EQUAL\",\"modRevision\":\"%lld\",", comma,
                           (long long)k->revision);
            add_key(&e->body, k);
            dt_text_puts(&e->body, "}");
            comma = ",";
        }
    }
    dt_text_puts(&e->body, "],\"success\":[");
    add_operations(&e->body, txn, true);
    dt_text_puts(&e->body, "],\"failure\":[");
    add_operations(&e->body, txn, false);
    dt_text_puts(&e->body, "]}");
    begin(e, "/v3/kv/txn", txn->key_count, done, user);
}

void etcd_grant(struct etcd *e, double ttl_s, etcd_done *done, void *user)
{
    dt_text_reset(&e->body);
    dt_text_printf(&e->body, "{\"TTL\":%d}", ttl_s > 1 ? (int)ceil(ttl_s) : 1);
    begin(e, "/v3/lease/grant", 0, done, user);
}

/* ---- begin and end ---- */

static int read_user(struct etcd *e, struct dt_error *err)
{
    const char *path = e->options.user_file;
    struct stat st;
    struct dt_text text;
    if (stat(path, &st) != 0) {
        (void)dt_fail_errno(err, "user_file: %s", path);
        err->status = DT_INVALID; /* a second try would find the same */
        return -1;
    }
    if ((st.st_mode & 077) != 0) {
        return dt_fail(err, DT_INVALID, "user_file: %s: mode %04o lets others read the password; run: chmod 600 %s",
                       path, (unsigned)(st.st_mode & 07777), path);
    }
    dt_text_init(&text);
    int result = dt_file_read(path, 4096, &text, err);
    if (result == 0) {
        const char *other, *line = dt_text_str(&text) + dt_text_mark(text.data, text.size, &other),
                           *colon = strchr(line, ':');
        size_t size = strcspn(line, "\r\n");
        if (colon == NULL || colon == line || colon > line + size) {
            result = dt_fail(err, DT_INVALID, "user_file: %s: must be one line NAME:PASSWORD", path);
        } else {
            e->name = dt_format("%.*s", (int)(colon - line), line);
            e->password = dt_format("%.*s", (int)(line + size - colon - 1), colon + 1);
        }
    }
    dt_text_clear(&text);
    return result;
}

static const char *copy_of(const char *s)
{
    return s != NULL ? dt_strdup(s) : NULL;
}

/* Opens a socket that workers do not inherit. */
static curl_socket_t open_socket(void *user, curlsocktype purpose, struct curl_sockaddr *to)
{
    (void)user, (void)purpose;
    return socket(to->family, to->socktype | SOCK_CLOEXEC, to->protocol);
}

static void set_up(struct etcd *e)
{
    const struct etcd_options *o = &e->options;
    double timeout_s = o->timeout_s > 0 ? o->timeout_s : 3;
    (void)curl.multi_setopt(e->multi, CURLMOPT_SOCKETFUNCTION, want_socket);
    (void)curl.multi_setopt(e->multi, CURLMOPT_SOCKETDATA, e);
    (void)curl.multi_setopt(e->multi, CURLMOPT_TIMERFUNCTION, want_timer);
    (void)curl.multi_setopt(e->multi, CURLMOPT_TIMERDATA, e);
    (void)curl.easy_setopt(e->easy, CURLOPT_POST, 1L);
    (void)curl.easy_setopt(e->easy, CURLOPT_NOSIGNAL, 1L);
#if LIBCURL_VERSION_NUM >= 0x075700
    /* older versions would block at the end of a request until a silent name server times out */
    (void)curl.easy_setopt(e->easy, CURLOPT_QUICK_EXIT, 1L);
#endif
    (void)curl.easy_setopt(e->easy, CURLOPT_OPENSOCKETFUNCTION, open_socket);
    (void)curl.easy_setopt(e->easy, CURLOPT_PROXY, "");
    (void)curl.easy_setopt(e->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl.easy_setopt(e->easy, CURLOPT_TIMEOUT_MS, (long)(timeout_s * 1e3) + 1);
    (void)curl.easy_setopt(e->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    (void)curl.easy_setopt(e->easy, CURLOPT_WRITEDATA, e);
    if (o->cacert != NULL) {
        (void)curl.easy_setopt(e->easy, CURLOPT_CAINFO, o->cacert);
    }
    if (o->cert != NULL) {
        (void)curl.easy_setopt(e->easy, CURLOPT_SSLCERT, o->cert);
    }
    if (o->key != NULL) {
        (void)curl.easy_setopt(e->easy, CURLOPT_SSLKEY, o->key);
    }
}

int etcd_open(struct etcd **out, uv_loop_t *loop, const struct etcd_options *options, struct dt_error *err)
{
    if (load_curl(err) != 0) {
        return -1;
    }
    struct etcd *e = dt_alloc(sizeof *e);
    e->loop = loop;
    e->options = *options;
    for (int i = 0; i < options->endpoint_count; i++) {
        e->options.endpoints[i].host = copy_of(options->endpoints[i].host);
    }
    e->options.cacert = copy_of(options->cacert);
    e->options.cert = copy_of(options->cert);
    e->options.key = copy_of(options->key);
    e->options.user_file = copy_of(options->user_file);
    (void)uv_timer_init(loop, &e->timer);
    e->timer.data = e;
    e->handles = 1;
    e->multi = curl.multi_init();
    e->easy = curl.easy_init();
    if (e->multi == NULL || e->easy == NULL) {
        (void)dt_fail(err, DT_NO_MEMORY, "etcd-v3: libcurl does not start");
        etcd_close(e);
        return -1;
    }
    set_up(e);
    if (options->user_file != NULL && read_user(e, err) != 0) {
        etcd_close(e);
        return -1;
    }
    *out = e;
    return 0;
}

static void on_timer_closed(uv_handle_t *handle)
{
    free_when_closed(handle->data);
}

void etcd_close(struct etcd *e)
{
    e->closing = true;
    if (e->added) {
        (void)curl.multi_remove_handle(e->multi, e->easy);
    }
    curl.easy_cleanup(e->easy);
    (void)curl.multi_cleanup(e->multi); /* calls want_socket for each socket */
    curl.slist_free_all(e->headers);
    uv_close((uv_handle_t *)&e->timer, on_timer_closed);
}

#else /* built without libcurl's headers */

int etcd_open(struct etcd **out, uv_loop_t *loop, const struct etcd_options *options, struct dt_error *err)
{
    (void)out, (void)loop, (void)options;
    return dt_fail(err, DT_INVALID,
                   "etcd-v3: this dtrun was built without libcurl; install libcurl4-openssl-dev and build again");
}
bool etcd_is_busy(const struct etcd *e)
{
    (void)e;
    return false;
}
void etcd_txn(struct etcd *e, const struct etcd_txn *txn, etcd_done *done, void *user)
{
    (void)e, (void)txn, (void)done, (void)user;
}
void etcd_grant(struct etcd *e, double ttl_s, etcd_done *done, void *user)
{
    (void)e, (void)ttl_s, (void)done, (void)user;
}
void etcd_close(struct etcd *e)
{
    (void)e;
}
#endif
