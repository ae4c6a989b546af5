#include "tests/harness/twin.h"

#include <curl/curl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/buf.h"

#define READY_MS 20000
#define ARGS_MAX 32

/* ---- calls ---- */

static size_t on_data(char *data, size_t size, size_t n, void *arg)
{
    buf_add(arg, data, size * n);
    return size * n;
}

/* {store} and {model} become the side's. */
static void fill(struct buf *out, const struct twin *t, enum twin_side side, const char *text)
{
    while (*text) {
        bool store = strncmp(text, "{store}", 7) == 0, model = strncmp(text, "{model}", 7) == 0;
        const char *id = store ? t->store_id[side] : model ? t->model_id[side] : NULL;
        if (store || model) {
            buf_adds(out, id ? id : "");
            text += 7;
        } else {
            buf_addc(out, *text++);
        }
    }
}

static json_t *lines(const struct buf *body)
{
    json_t *all = json_array(), *one;
    const char *at = buf_str(body);
    while (*at) {
        size_t n = strcspn(at, "\n");
        one = n ? json_loadb(at, n, JSON_DECODE_ANY, NULL) : NULL;
        if (one)
            json_array_append_new(all, one);
        at += n + (at[n] == '\n');
    }
    if (json_array_size(all) > 1)
        return all;
    one = json_incref(json_array_get(all, 0));
    json_decref(all);
    return one;
}

void twin_ask_one(struct twin *t, enum twin_side side, const char *method, const char *path, const char *body)
{
    struct buf url, text, got;
    struct curl_slist *headers = curl_slist_append(NULL, "Content-Type: application/json");
    char error[CURL_ERROR_SIZE] = "";
    buf_init(&url, 1 << 20);
    buf_init(&text, 8 << 20);
    buf_init(&got, 64 << 20);
    buf_adds(&url, t->url[side]);
    fill(&url, t, side, path);
    if (body)
        fill(&text, t, side, body);
    curl_easy_reset(t->curl);
    curl_easy_setopt(t->curl, CURLOPT_URL, buf_str(&url));
    curl_easy_setopt(t->curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, on_data);
    curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, &got);
    curl_easy_setopt(t->curl, CURLOPT_TIMEOUT_MS, (long)harness_ms(20000));
    curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(t->curl, CURLOPT_NOSIGNAL, 1L);
    if (body) {
        curl_easy_setopt(t->curl, CURLOPT_POSTFIELDS, buf_str(&text));
        curl_easy_setopt(t->curl, CURLOPT_POSTFIELDSIZE, (long)text.len);
    }
    CURLcode rc = curl_easy_perform(t->curl);
    if (rc != CURLE_OK)
        fail_msg("%s %s: %s", method, buf_str(&url), *error ? error : curl_easy_strerror(rc));
    struct twin_answer *a = &t->answer[side];
    json_decref(a->json);
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &a->status);
    a->json = lines(&got);
    curl_slist_free_all(headers);
    buf_release(&url);
    buf_release(&text);
    buf_release(&got);
}

/* ---- comparing ---- */

static bool is_id(const char *s)
{
    return strlen(s) >= 26 && strspn(s, "0123456789ABCDEFGHJKMNPQRSTVWXYZ") >= 26;
}

/* Ids in a text are equal, whichever they are, and so is the place of an error. */
static json_t *plain_text(const char *s)
{
    struct buf out;
    buf_init(&out, 1 << 20);
    while (*s) {
        if (strncmp(s, "(line ", 6) == 0 && strchr(s, ')')) {
            s = strchr(s, ')') + 1;
            s += *s == ':';
            s += *s == ' ';
        } else if (is_id(s)) {
            buf_adds(&out, "ID");
            s += 26;
        } else {
            buf_addc(&out, *s++);
        }
    }
    json_t *text = json_string(buf_str(&out));
    buf_release(&out);
    return text;
}

static int by_text(const void *a, const void *b)
{
    char *x = json_dumps(*(json_t *const *)a, JSON_SORT_KEYS | JSON_ENCODE_ANY);
    char *y = json_dumps(*(json_t *const *)b, JSON_SORT_KEYS | JSON_ENCODE_ANY);
    int c = strcmp(x ? x : "", y ? y : "");
    free(x);
    free(y);
    return c;
}

static json_t *comparable(const json_t *v, const char *key);

static json_t *comparable_list(const json_t *list, const char *key)
{
    static const char *const unordered[] = {"tuples", "changes", "objects", "users", "computed", "lines", "stores"};
    size_t n = json_array_size(list);
    json_t **items = calloc(n + 1, sizeof *items), *out = json_array();
    assert_non_null(items);
    for (size_t i = 0; i < n; i++)
        items[i] = comparable(json_array_get(list, i), "");
    for (size_t k = 0; k < sizeof unordered / sizeof *unordered; k++)
        if (strcmp(key, unordered[k]) == 0)
            qsort(items, n, sizeof(json_t *), by_text);
    for (size_t i = 0; i < n; i++)
        json_array_append_new(out, items[i]);
    free(items);
    return out;
}

static json_t *comparable(const json_t *v, const char *key)
{
    const json_t *item;
    const char *name;
    bool time = strcmp(key, "timestamp") == 0 || (strlen(key) > 3 && strcmp(key + strlen(key) - 3, "_at") == 0);
    if (json_is_string(v) && time)
        return json_string("TIME");
    if (json_is_string(v) && strcmp(key, "continuation_token") == 0)
        return json_string(json_string_length(v) ? "TOKEN" : "");
    if (json_is_string(v))
        return plain_text(json_string_value(v));
    if (json_is_array(v))
        return comparable_list(v, key);
    if (!json_is_object(v))
        return json_deep_copy(v);
    json_t *out = json_object();
    json_object_foreach((json_t *)(uintptr_t)v, name, item) json_object_set_new(out, name, comparable(item, name));
    return out;
}

bool twin_equal(struct twin *t)
{
    json_t *a = t->answer[0].json ? comparable(t->answer[0].json, "lines") : json_null();
    json_t *b = t->answer[1].json ? comparable(t->answer[1].json, "lines") : json_null();
    bool same = t->answer[0].status == t->answer[1].status && json_equal(a, b);
    json_decref(a);
    json_decref(b);
    return same;
}

bool twin_ask(struct twin *t, const char *method, const char *path, const char *body)
{
    twin_ask_one(t, TWIN_OPENFGA, method, path, body);
    twin_ask_one(t, TWIN_RELATA, method, path, body);
    return twin_equal(t);
}

const char *twin_show(struct twin *t)
{
    char *a = t->answer[0].json ? json_dumps(t->answer[0].json, JSON_ENCODE_ANY) : NULL;
    char *b = t->answer[1].json ? json_dumps(t->answer[1].json, JSON_ENCODE_ANY) : NULL;
    const char *text = harness_strf(t->h, "OpenFGA: %ld %.3000s\nRelata:  %ld %.3000s", t->answer[0].status, a ? a : "",
                                    t->answer[1].status, b ? b : "");
    free(a);
    free(b);
    return text;
}

/* ---- the two ---- */

static const char *member_text(const struct twin *t, enum twin_side side, const char *name)
{
    const char *s = json_string_value(json_object_get(t->answer[side].json, name));
    return s ? harness_strf(t->h, "%s", s) : NULL;
}

void twin_store(struct twin *t)
{
    twin_ask(t, "POST", "/stores", "{\"name\":\"twin\"}");
    for (int side = 0; side < 2; side++) {
        t->store_id[side] = member_text(t, side, "id");
        t->model_id[side] = NULL;
        if (!t->store_id[side])
            fail_msg("no store was made:\n%s", twin_show(t));
    }
}

bool twin_model(struct twin *t, const char *json)
{
    if (!twin_ask(t, "POST", "/stores/{store}/authorization-models", json))
        fail_msg("%s\n%s", json, twin_show(t));
    if (t->answer[0].status != 201)
        return false;
    for (int side = 0; side < 2; side++)
        t->model_id[side] = member_text(t, side, "authorization_model_id");
    return true;
}

static bool listens(void *arg)
{
    char line[256] = "";
    FILE *f = fopen(arg, "re");
    bool whole = f && fgets(line, sizeof line, f) && strchr(line, '\n');
    if (f)
        fclose(f);
    return whole;
}

static const char *read_line(struct harness *h, const char *path)
{
    char line[256] = "";
    FILE *f = fopen(path, "re");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    fclose(f);
    line[strcspn(line, "\n")] = '\0';
    return harness_strf(h, "%s", line);
}

void twin_open(struct twin *t, struct harness *h, ...)
{
    const char *url_file = harness_strf(h, "%s/authz.url", h->dir);
    const char *args[ARGS_MAX] = {"--set", harness_strf(h, "pg.dsn=%s", h->dsn),
                                  "--set", harness_strf(h, "http.url_file=%s", url_file),
                                  "--set", "admin.listen=127.0.0.1:0"};
    size_t n = 6;
    va_list ap;
    *t = (struct twin){.h = h, .url = {h->store_url}, .curl = curl_easy_init()};
    va_start(ap, h);
    for (const char *arg; n < ARGS_MAX - 1 && (arg = va_arg(ap, const char *)) != NULL;)
        args[n++] = arg;
    va_end(ap);
    assert_int_equal(relatactl(h, NULL, "migrate", "--store", "--set", harness_strf(h, "pg.dsn=%s", h->dsn), NULL), 0);
    t->authz = proc_startv(h, "authz-store", args);
    assert_eventually(listens, (void *)(uintptr_t)url_file, READY_MS);
    t->url[TWIN_RELATA] = read_line(h, url_file);
    for (int tries = 0; tries < 2000; tries++) {
        twin_ask_one(t, TWIN_RELATA, "GET", "/healthz", NULL);
        if (t->answer[TWIN_RELATA].status == 200)
            break;
        usleep(10000);
    }
    assert_int_equal(t->answer[TWIN_RELATA].status, 200);
    twin_store(t);
}

void twin_close(struct twin *t)
{
    for (int side = 0; side < 2; side++)
        json_decref(t->answer[side].json);
    curl_easy_cleanup(t->curl);
    proc_stop(t->authz);
}
