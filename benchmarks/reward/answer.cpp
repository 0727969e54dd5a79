#include <bits/stdc++.h>
using namespace std;

int main() {
    int n;
    cin >> n;
    vector<long long> numbers(n);
    for (auto& number : numbers) cin >> number;
    long long best = numbers[0], here = numbers[0];
    map<long long, int> times;
    ++times[numbers[0]];
    for (int i = 1; i < n; ++i) {
        here = max(numbers[i], here + numbers[i]);
        best = max(best, here);
        ++times[numbers[i]];
    }
    auto found = times.begin();
    for (auto it = times.begin(); it != times.end(); ++it)
        if (it->second > found->second) found = it;
    cout << best << "\n" << found->first << " " << found->second << endl;
}
