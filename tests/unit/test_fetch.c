/* URLs and addresses that llmc_fetch allows, and base64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "base/base64.h"
#include "hub/hub.h"

static bool
is_public(const char *text)
{
	struct sockaddr_in a4 = { .sin_family = AF_INET };
	struct sockaddr_in6 a6 = { .sin6_family = AF_INET6 };

	if (inet_pton(AF_INET, text, &a4.sin_addr) == 1)
		return fetch_is_public((const struct sockaddr *)(const void *)&a4);
	assert_int_equal(inet_pton(AF_INET6, text, &a6.sin6_addr), 1);
	return fetch_is_public((const struct sockaddr *)(const void *)&a6);
}

/* The tables of special-purpose addresses of IANA */
static void
private_addresses_are_not_public(void **state)
{
	static const char *const no[] = {
		"0.0.0.0",     "0.1.2.3",          "10.0.0.1",        "10.255.255.255",
		"100.64.0.1",  "100.127.255.25",   "127.0.0.1",       "127.255.0.1",
		"169.254.1.1", "169.254.169.254",  "172.16.0.1",      "172.31.255.255",
		"192.0.0.8",   "192.0.2.1",        "192.168.0.1",     "198.18.0.1",
		"198.19.1.1",  "198.51.100.7",     "203.0.113.9",     "224.0.0.1",
		"239.1.1.1",   "240.0.0.1",        "255.255.255.255", "::",
		"::1",         "::ffff:127.0.0.1", "::ffff:10.1.1.1", "64:ff9b::7f00:1",
		"100::1",      "fe80::1",          "fc00::1",         "fd12::1",
		"ff02::1",     "2001::1",          "2001:db8::1",     "2002:7f00:1::",
		"3fff::1",     "::7f00:1",
	};
	static const char *const yes[] = {
		"1.1.1.1",         "8.8.8.8",        "9.255.255.255", "11.0.0.1",
		"100.63.255.255",  "100.128.0.1",    "126.1.1.1",     "128.0.0.1",
		"172.15.0.1",      "172.32.0.1",     "192.0.1.1",     "192.167.1.1",
		"198.17.255.255",  "198.20.0.1",     "223.255.255.1", "2606:4700::1111",
		"2001:4860::8888", "::ffff:8.8.8.8", "2a00::1",
	};

	(void)state;
	for (size_t i = 0; i < sizeof no / sizeof *no; i++)
		if (is_public(no[i]))
			fail_msg("%s is public", no[i]);
	for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
		if (!is_public(yes[i]))
			fail_msg("%s is not public", yes[i]);
}

static bool
allowed(const char *url, const char *hosts, bool *exact)
{
	llmc_error err;

	return fetch_check_url(url, hosts, exact, &err) == LLMC_OK;
}

static void
hosts_are_compared_as_a_whole(void **state)
{
	static const char list[] = "a.example,*.b.example:8443,[2606:4700::1]:81,10.0.0.1";
	bool exact;

	(void)state;
	assert_true(allowed("https://a.example/x", list, &exact) && !exact);
	assert_true(allowed("HTTP://A.EXAMPLE", list, &exact));
	assert_true(allowed("http://a.example:443/x?y#z", list, &exact));
	assert_true(allowed("https://c.d.b.example:8443/", list, &exact) && !exact);
	assert_true(allowed("http://[2606:4700::1]:81/", list, &exact) && exact);
	assert_true(allowed("http://10.0.0.1/", list, &exact) && exact);
	assert_true(allowed("http://anything.example/", "*", &exact) && !exact);
	assert_true(allowed("http://10.0.0.1/", "*", &exact) && !exact);
	static const char *const no[] = {
		"http://a.example:8080/",   "http://xa.example/",
		"http://a.example.evil/",   "http://a.example@evil/",
		"http://evil/a.example",    "http://evil?a.example",
		"http://evil#a.example",    "http://evil\\a.example/",
		"http://a.example\\@evil/", "http://a.example%2eevil/",
		"http://a.example:80:80/",  "http://a.example:/",
		"http://a.example:0/",      "http://a.example:99999999999/",
		"http://b.example:8443/",   "http://.b.example:8080/",
		"https://c.b.example/",     "http://[2606:4700::1/",
		"http://[a.example]/",      "http://[2606:4700::2]:81/",
		"http:///a.example",        "http://",
		"ftp://a.example/",         "//a.example/",
		"http:a.example",           "http://a.example/ b",
		"http://a.example/\n",      "http://\xc3\xa4.example/",
	};
	for (size_t i = 0; i < sizeof no / sizeof *no; i++)
		if (allowed(no[i], list, &exact))
			fail_msg("%s is allowed", no[i]);
	assert_false(allowed("http://a.example/", "", &exact));
	assert_false(allowed("http://a.example/", NULL, &exact));
}

/* Vectors of RFC 4648 */
static void
base64_is_decoded(void **state)
{
	static const char *const ok[][2] = {
		{ "", "" },
		{ "Zg==", "f" },
		{ "Zm8=", "fo" },
		{ "Zm9v", "foo" },
		{ "Zm9vYg==", "foob" },
		{ "Zm9vYmE=", "fooba" },
		{ "Zm9vYmFy", "foobar" },
		{ "Zm9vYg", "foob" },
		{ "Zm 9v\r\nYmE", "fooba" },
		{ "-_8", "\xfb\xff" },
		{ "+/8=", "\xfb\xff" },
	};
	static const struct {
		const char *text;
		size_t at;
	} bad[] = { { "Z", 1 },        { "Zg=", 3 },   { "Zg===", 4 }, { "=", 0 },
		    { "Zg==Zg==", 4 }, { "Zm9v=", 4 }, { "Zm9!", 3 },  { "\xc3", 0 } };
	uint8_t out[64];
	size_t at;

	(void)state;
	for (size_t i = 0; i < sizeof ok / sizeof *ok; i++) {
		const size_t n = strlen(ok[i][1]);
		assert_int_equal(base64_decode(ok[i][0], strlen(ok[i][0]), out, &at), n);
		assert_memory_equal(out, ok[i][1], n);
	}
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		assert_int_equal(base64_decode(bad[i].text, strlen(bad[i].text), out, &at), -1);
		assert_int_equal(at, bad[i].at);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(private_addresses_are_not_public),
		cmocka_unit_test(hosts_are_compared_as_a_whole),
		cmocka_unit_test(base64_is_decoded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
