// SPDX-License-Identifier: GPL-2.0
// Virtual calls, exceptions, and a standard library.
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

struct Shape {
	virtual ~Shape() = default;
	virtual int area() const = 0;
};

struct Square : Shape {
	int side;

	explicit Square(int side) : side(side) {}
	int area() const override
	{
		if (side > 6)
			throw std::runtime_error("too large");
		return side * side;
	}
};

int main()
{
	std::vector<std::unique_ptr<Shape>> shapes;
	std::map<std::string, int> areas;

	for (int side = 1; side < 9; side++)
		shapes.push_back(std::make_unique<Square>(side));
	for (const auto &shape : shapes) {
		try {
			areas[std::to_string(areas.size())] = shape->area();
		} catch (const std::exception &error) {
			areas[error.what()]--;
		}
	}
	for (const auto &[name, area] : areas)
		std::cout << name << ' ' << area << '\n';
}
