// SPDX-License-Identifier: GPL-2.0
/*
 * Calls pause() from functions of C++: of a namespace without a name, a destructor, templates, a
 * lambda that std::sort() calls through std::function, a virtual one and one that is inlined.
 */
#include <algorithm>
#include <functional>
#include <unistd.h>
#include <vector>

#define noinline __attribute__((noinline))

static int sink;

namespace shop {

template <typename T>
inline __attribute__((always_inline)) T rest(T value)
{
	pause();
	return value + sink;
}

struct Keeper {
	virtual ~Keeper() = default;
	virtual int wait(int count) = 0;
};

template <typename T, int N>
struct Night : Keeper {
	noinline int wait(int count) override
	{
		sink += rest<T>(count);
		return sink + N;
	}
};

namespace {

template <typename T>
noinline void sorted(std::vector<T> &values, const std::function<bool(const T &, const T &)> &less)
{
	std::sort(values.begin(), values.end(), less);
	sink++;
}

} // namespace

class Street {
public:
	explicit Street(Keeper &keeper) : keeper(keeper) {}

	noinline ~Street()
	{
		std::vector<int> values = { 3, 1, 2 };

		sorted<int>(values, [this](const int &left, const int &right) noinline {
			if (*this == left)
				sink++;
			return left < right;
		});
		sink++;
	}

	noinline bool operator==(int count) const
	{
		return keeper.wait(count) + 1 == sink;
	}

private:
	Keeper &keeper;
};

} // namespace shop

int main()
{
	shop::Night<long, 7> night;

	{
		shop::Street street(night);
	}
	return sink;
}
