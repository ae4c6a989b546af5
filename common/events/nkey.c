/*
 * nkey.c - the public half of a NATS user seed.
 *
 * nats.c signs with a seed file but wants to be told the public key. An nkey is base32 of (prefix bytes, Ed25519 key,
 * CRC-16/XMODEM, little endian); a seed has two prefix bytes, a public key one.
 */
#include <openssl/evp.h>

#include "common/events/internal.h"

#define NKEY_USER 0xa0 /* 20 << 3: base32 "U" */
#define NKEY_SEED 0x90 /* 18 << 3: base32 "S" */
#define KEY_LEN 32

static uint16_t nkey_crc(const unsigned char *data, size_t len)
{
    uint16_t crc = 0;
    for (size_t i = 0; i < len; i++) {
        crc ^= (uint16_t)(data[i] << 8);
        for (int bit = 0; bit < 8; bit++)
            crc = (uint16_t)(crc & 0x8000 ? (crc << 1) ^ 0x1021 : crc << 1);
    }
    return crc;
}

static const char base32[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/* Number of bytes, or -1. */
static int base32_decode(const char *text, size_t len, unsigned char *out, size_t max)
{
    uint32_t acc = 0;
    int bits = 0;
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        const char *at = text[i] ? strchr(base32, text[i]) : NULL;
        if (!at)
            return -1;
        acc = (acc << 5) | (uint32_t)(at - base32);
        bits += 5;
        if (bits >= 8) {
            bits -= 8;
            if (n == max)
                return -1;
            out[n++] = (unsigned char)(acc >> bits);
        }
    }
    return (int)n;
}

static void base32_encode(const unsigned char *data, size_t len, char *out, size_t max)
{
    uint32_t acc = 0;
    int bits = 0;
    size_t n = 0;
    for (size_t i = 0; i < len && n + 3 < max; i++) {
        acc = (acc << 8) | data[i];
        for (bits += 8; bits >= 5; bits -= 5)
            out[n++] = base32[(acc >> (bits - 5)) & 31];
    }
    if (bits > 0)
        out[n++] = base32[(acc << (5 - bits)) & 31];
    out[n] = '\0';
}

static bool nkey_from_seed(const char *text, size_t len, char *out)
{
    unsigned char raw[2 + KEY_LEN + 2];
    if (base32_decode(text, len, raw, sizeof raw) != (int)sizeof raw)
        return false;
    uint16_t crc = nkey_crc(raw, sizeof raw - 2);
    bool ok = (raw[0] & 0xf8) == NKEY_SEED && ((raw[0] & 7) << 5 | raw[1] >> 3) == NKEY_USER &&
              raw[sizeof raw - 2] == (crc & 0xff) && raw[sizeof raw - 1] == crc >> 8;

    unsigned char key[1 + KEY_LEN + 2] = {NKEY_USER};
    size_t key_len = KEY_LEN;
    EVP_PKEY *pkey = ok ? EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, raw + 2, KEY_LEN) : NULL;
    ok = pkey && EVP_PKEY_get_raw_public_key(pkey, key + 1, &key_len) == 1 && key_len == KEY_LEN;
    EVP_PKEY_free(pkey);
    OPENSSL_cleanse(raw, sizeof raw);
    if (!ok)
        return false;
    crc = nkey_crc(key, 1 + KEY_LEN);
    key[1 + KEY_LEN] = (unsigned char)(crc & 0xff);
    key[2 + KEY_LEN] = (unsigned char)(crc >> 8);
    base32_encode(key, sizeof key, out, NKEY_TEXT_MAX);
    return true;
}

enum status nkey_public(const char *path, char *out, struct err *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return err_set(err, ST_CONFIG, NULL, "cannot open nats.nkey_seed_file \"%s\": %m", path);
    char line[256];
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        size_t len = strcspn(line, " \t\r\n");
        found = strncmp(line, "SU", 2) == 0 && nkey_from_seed(line, len, out);
    }
    OPENSSL_cleanse(line, sizeof line);
    fclose(f);
    if (!found)
        return err_set(err, ST_CONFIG, NULL, "nats.nkey_seed_file \"%s\" holds no user seed (SU...)", path);
    return ST_OK;
}
