// SPDX-License-Identifier: GPL-2.0
// Exceptions that pass frames which are aligned, grow, or have destructors to run.
#include <alloca.h>
#include <stdexcept>

#define NOINLINE __attribute__((__noinline__))

static volatile int sum;

struct Guard {
	int number;

	~Guard()
	{
		sum += number;
	}
};

NOINLINE static int leaf(const char *bytes)
{
	return sum += bytes[0];
}

NOINLINE static int thrower(int number)
{
	alignas(64) char array[64] = { 1 };
	char *buffer = static_cast<char *>(alloca(16 * number));
	Guard guard{number};

	buffer[0] = 1;
	if (number > 2)
		throw std::out_of_range("too large");
	return leaf(array) + leaf(buffer);
}

NOINLINE static int middle(int number)
{
	Guard guard{number};

	return thrower(number) + 1;
}

NOINLINE static int aligned(int number)
{
	alignas(64) char array[128] = { 1 };

	return middle(number) + leaf(array);
}

NOINLINE static int catcher(int number)
{
	char *buffer = static_cast<char *>(alloca(16 * number));

	buffer[0] = 1;
	try {
		return aligned(number) + leaf(buffer);
	} catch (const std::exception &error) {
		return leaf(error.what());
	}
}

int main()
{
	for (int number = 1; number < 5; number++)
		sum += catcher(number);
}
